"""Common part of the repository's models: strict options, and forecasts for a batch of requests at once."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .contract import DATASETS, INPUTS, MAX_BATCH_SIZE
from .data import synthetic
from .export import load_trace, traced
from .model import DEFAULT_SEED, HIDDEN, build_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

PREFIX = "TFT_"
"""Prefix of the variables that configure a model."""

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

FORMATS = ("eager", "ts-trace")

BF16_CAPABILITY = 8
"""Older GPUs have no units for it, and compute it some other way."""

CPU_PIECE = 32
"""Examples that a CPU computes at a time: the attention of 1024 takes GBs for what a few MB of cache do as well."""


@dataclass(frozen=True)
class Options:
    """Settings of a model's service.

    Args:
        dataset: A key of `DATASETS`; the only option in the model's configuration.
        size: A key of `HIDDEN`.
        precision: A key of `PRECISIONS`; all except fp32 need a GPU.
        format: One of `FORMATS`.
        seed: Seed of the random weights.
        weights: A state dict instead of random weights.
        exported: A traced network from `export`, instead of a new trace.
        threads: Threads of torch; 0 for 1 on a CPU, whose cores the instances share, else for torch's own choice.
        slowdown: 0.3 makes every batch take 30 % longer, which turns a gate red.
    """

    dataset: str
    size: str = "full"
    precision: str = "fp32"
    format: str = "eager"
    seed: int = DEFAULT_SEED
    weights: Path | None = None
    exported: Path | None = None
    threads: int = 0
    slowdown: float = 0.0


def read_options(dataset: str, environment: Mapping[str, str]) -> Options:
    """Read the options from variables: ``TFT_SIZE=small`` and so on, each of the names of `Options`.

    Triton passes variables on without a check. A misspelt one would serve another model than requested, so it is
    refused.

    Args:
        dataset: The data set in the model's configuration.
        environment: All variables of the process.

    Raises:
        ValueError: A variable is not known, or has a wrong value.
    """
    given = {name.removeprefix(PREFIX).lower(): value for name, value in environment.items() if name.startswith(PREFIX)}
    readers: dict[str, Callable[[str], object]] = {
        "size": _one_of(HIDDEN),
        "precision": _one_of(PRECISIONS),
        "format": _one_of(FORMATS),
        "seed": int,
        "weights": _file,
        "exported": _file,
        "threads": _whole,
        "slowdown": _zero_or_more,
    }
    unknown = [f"{PREFIX}{name.upper()}" for name in sorted(given) if name not in readers]
    if unknown:
        known = ", ".join(f"{PREFIX}{name.upper()}" for name in readers)
        raise ValueError(f"{', '.join(unknown)}: no such option; known: {known}")
    options: dict[str, Any] = {"dataset": _one_of(DATASETS)(dataset)}
    for name, text in given.items():
        try:
            options[name] = readers[name](text)
        except ValueError as problem:
            raise ValueError(f"{PREFIX}{name.upper()}={text}: {problem}") from None
    found = Options(**options)
    if found.exported is not None and found.format != "ts-trace":
        raise ValueError(f"{PREFIX}EXPORTED is a trace: it needs {PREFIX}FORMAT=ts-trace")
    if found.exported is not None and found.precision != "fp32":
        raise ValueError(f"{PREFIX}EXPORTED is a trace in fp32: leave out {PREFIX}PRECISION")
    if found.exported is not None and found.weights is not None:
        raise ValueError(f"{PREFIX}EXPORTED has its own weights: leave out {PREFIX}WEIGHTS")
    return found


class Forecaster:
    """The network on one device, from the tensors of several requests to their forecasts.

    Args:
        options: How it is served.
        device: ``"cpu"`` or ``"cuda"``; by default CUDA where torch sees a GPU.

    Raises:
        ValueError: The precision needs a GPU, or another one.
    """

    def __init__(self, options: Options, device: str | None = None) -> None:
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if self.device == "cpu" and options.precision != "fp32":
            raise ValueError(f"{PREFIX}PRECISION={options.precision} needs a GPU; on a CPU it is fp32")
        if options.precision == "bf16" and torch.cuda.get_device_capability()[0] < BF16_CAPABILITY:
            raise ValueError(f"{PREFIX}PRECISION=bf16 needs a GPU of compute capability {BF16_CAPABILITY}.0 or above")
        threads = options.threads or (1 if self.device == "cpu" else 0)
        if threads:
            torch.set_num_threads(threads)
        # By default cuDNN's LSTMs round fp32 to ten bits, which shows in the third digit of a forecast.
        torch.backends.cudnn.allow_tf32 = False
        self._piece = CPU_PIECE if self.device == "cpu" else MAX_BATCH_SIZE
        self._series = DATASETS[options.dataset].series
        self._slowdown = options.slowdown
        self._dtype = PRECISIONS[options.precision]
        if options.exported is not None:
            self._model = load_trace(options.exported, self.device)
        else:
            network = build_model(options.dataset, size=options.size, seed=options.seed, weights=options.weights)
            self._model = network.to(self.device, self._dtype)
        warm_up = list(synthetic(options.dataset, 2).inputs.values())
        if options.format == "ts-trace" and options.exported is None:
            self._model = traced(self._model, self._tensors([warm_up]))
        # The first call of a network sets up what later ones find.
        self.forecast([warm_up])

    def problem(self, inputs: Sequence[NDArray[np.generic]]) -> str:
        """Fault of one request's values; empty if they are valid.

        Triton has compared types and shapes. A category without a row in the table would fail the whole batch, with the
        requests of others in it.
        """
        categories = inputs[0]
        if categories.min() < 0 or categories.max() >= self._series:
            return f"{INPUTS[0].name} has categories outside of 0..{self._series - 1}"
        return ""

    def forecast(self, requests: Sequence[Sequence[NDArray[np.generic]]]) -> list[NDArray[np.float32]]:
        """Forecast all requests as one batch; waits for the device.

        Args:
            requests: Of each the arrays in the order of `INPUTS`, (examples, *shape); one request at least.

        Returns:
            Of each request (examples, 24, 3), on the host.
        """
        start_ns = time.perf_counter_ns()
        with torch.inference_mode():
            tensors = self._tensors(requests)
            pieces = zip(*(tensor.split(self._piece) for tensor in tensors), strict=True)
            forecasts = torch.cat([self._model(*piece).float().cpu() for piece in pieces]).numpy()
        if self._slowdown:
            _spin_until_ns(start_ns + (1 + self._slowdown) * (time.perf_counter_ns() - start_ns))
        return np.split(forecasts, np.cumsum([len(inputs[0]) for inputs in requests])[:-1])

    def _tensors(self, requests: Sequence[Sequence[NDArray[np.generic]]]) -> tuple[torch.Tensor, ...]:
        tensors = (torch.from_numpy(np.concatenate(arrays)).to(self.device) for arrays in zip(*requests, strict=True))
        return tuple(tensor.to(self._dtype) if tensor.is_floating_point() else tensor for tensor in tensors)


def _spin_until_ns(end_ns: float) -> None:
    # Slower code keeps its core busy; a sleep would lend it to the other processes and hide the slowdown.
    while time.perf_counter_ns() < end_ns:
        pass


def _one_of(known: Mapping[str, object] | Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise ValueError(f"none of {', '.join(known)}")
        return text

    return read


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("less than 1")
    return number


def _zero_or_more(text: str) -> float:
    number = float(text)
    if not math.isfinite(number) or number < 0:
        raise ValueError("not a number of 0 or more")
    return number


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise ValueError("no such file")
    return path
