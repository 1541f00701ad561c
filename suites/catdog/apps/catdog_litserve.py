"""Cats or dogs behind LitServe: a JPEG as base64 in, the likelier label with its probability out.

Run ``python catdog_litserve.py --max-batch-size 64 --batch-timeout 0.01 --port 8000`` and post ``{"image": "..."}`` to
``/predict``; ``--help`` lists the arguments. ``--slowdown 0.3`` makes all work on pictures and batches take 30 %
longer: the way to see a gate turn red.

LitServe starts its workers by ``spawn``: they import this file anew and get the ``CatDog`` object by pickle. The import
of this file therefore does nothing, and ``setup``, which only workers call, imports torch.
"""

from __future__ import annotations

import argparse
import base64
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import litserve as ls
from fastapi.responses import JSONResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from suites.catdog.apps.catdog_settings import DEFAULT_SEED, FIRST_WITH_BF16, LABELS, PRECISIONS, SIZES
else:
    # A script imports its neighbours by their bare names.
    from catdog_settings import DEFAULT_SEED, FIRST_WITH_BF16, LABELS, PRECISIONS, SIZES

WARM_UP_PICTURES = 32
"""Most pictures of the warm-up batch, because one of 4096 would take longer than the measurement."""


@dataclass(frozen=True)
class Picture:
    """A request that can be answered.

    Args:
        pixels: Array of shape (3, resolution, resolution).
        tells_settings: Whether the reply reports the model's actual settings.
    """

    pixels: npt.NDArray[np.float32]
    tells_settings: bool


@dataclass(frozen=True)
class Refusal:
    """A request that cannot be answered.

    Args:
        why: Reason for the client.
    """

    why: str


class CatDog(ls.LitAPI):
    """The model behind ``/predict``.

    LitServe finds the arguments of these methods by their names, which have to be ``request``, ``x`` and ``output``.

    Args:
        options: The command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        # Both belong here; as arguments of LitServer they are deprecated. Without them requests are not batched. The
        # published baseline ran that way, under a text that gave it 4096 and 0.01.
        super().__init__(max_batch_size=options.max_batch_size, batch_timeout=options.batch_timeout)
        self._options = options

    def setup(self, device: str) -> None:
        """Build the model in a worker, and run it once.

        Raises:
            RuntimeError: The GPU has no units for the precision.
        """
        import torch  # noqa: PLC0415 -- see the module's docstring

        if TYPE_CHECKING:
            from suites.catdog.apps.catdog_model import Classifier, build_model  # noqa: PLC0415 -- as below
            from suites.catdog.apps.catdog_picture import to_pixels  # noqa: PLC0415 -- as below
        else:
            from catdog_model import Classifier, build_model  # noqa: PLC0415 -- imports torch
            from catdog_picture import to_pixels  # noqa: PLC0415 -- imports numpy and Pillow

        options = self._options
        on_gpu = device.startswith("cuda")
        if on_gpu and options.precision == "bf16" and not options.allow_emulated:
            capability = torch.cuda.get_device_capability(device)
            if capability < FIRST_WITH_BF16:
                # The published "float16" server ran in bfloat16 on such a GPU, and was slower than in fp32.
                raise RuntimeError(
                    f"this GPU has compute capability {capability[0]}.{capability[1]} and no units for bf16:"
                    " --precision=fp16, or --allow-emulated"
                )
        # On a GPU torch's own choice stays; on the CPU several workers would fight for the same cores.
        threads = options.threads or (None if on_gpu else 1)
        if threads is not None:
            torch.set_num_threads(threads)
        size = SIZES[options.size]
        model = build_model(size.depths, size.widths, len(LABELS), options.seed, options.weights)
        self._to_pixels = to_pixels
        self._resolution = size.resolution
        self._classifier = Classifier(model, precision=PRECISIONS[options.precision], device=device)
        pictures = min(options.max_batch_size, WARM_UP_PICTURES)
        self._classifier.probabilities(torch.zeros(pictures, 3, size.resolution, size.resolution).numpy())

    def decode_request(self, request: dict[str, object]) -> Picture | Refusal:
        """Take the picture out of a request.

        An exception here would fail all requests of the batch, so a request's error is carried to its own reply.
        """
        start_ns = time.perf_counter_ns()
        decoded = self._decoded(request)
        self._slow_down(start_ns)
        return decoded

    def _decoded(self, request: dict[str, object]) -> Picture | Refusal:
        text = request.get("image")
        if not isinstance(text, str):
            return Refusal('no "image": the picture as base64')
        try:
            data = base64.b64decode(text, validate=True)
        except ValueError as problem:
            return Refusal(f'"image" is not base64: {problem}')
        try:
            pixels = self._to_pixels(data, self._resolution)
        except OSError:
            return Refusal('"image" is not a picture, or only a part of one')
        return Picture(pixels, tells_settings=request.get("settings") is True)

    def batch(self, inputs: list[Picture | Refusal]) -> list[Picture | Refusal]:
        """Return the requests unchanged; LitServe calls this only if it batches."""
        return inputs

    def predict(self, x: list[Picture | Refusal] | Picture | Refusal) -> list[object] | object:
        """Classify a batch, or a single request if LitServe does not batch."""
        requests = x if isinstance(x, list) else [x]
        outputs = self._answer(requests)
        return outputs if isinstance(x, list) else outputs[0]

    # `object` because the reply is a dict or, with its own status, a response; FastAPI makes JSON of either.
    def encode_response(self, output: object) -> object:
        """Send the result of ``predict`` for one request."""
        return output

    def _answer(self, requests: Sequence[Picture | Refusal]) -> list[object]:
        import numpy as np  # noqa: PLC0415 -- see the module's docstring

        start_ns = time.perf_counter_ns()
        pixels = [request.pixels for request in requests if isinstance(request, Picture)]
        rows = iter(self._classifier.probabilities(np.stack(pixels)) if pixels else ())
        outputs: list[object] = [
            JSONResponse({"detail": request.why}, status_code=400)
            if isinstance(request, Refusal)
            else self._reply(next(rows), request)
            for request in requests
        ]
        self._slow_down(start_ns)
        return outputs

    def _slow_down(self, start_ns: int) -> None:
        if self._options.slowdown:
            _spin_until_ns(start_ns + (1 + self._options.slowdown) * (time.perf_counter_ns() - start_ns))

    def _reply(self, probabilities: list[float], request: Picture) -> dict[str, object]:
        best = max(range(len(LABELS)), key=probabilities.__getitem__)
        reply: dict[str, object] = {"predictions": [{"label": LABELS[best], "probability": probabilities[best]}]}
        if request.tells_settings:
            reply["settings"] = self._classifier.effective()
        return reply


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line.

    Args:
        arguments: The command line without the program's name.

    Returns:
        The options by name.

    Raises:
        SystemExit: An argument is not known or has a wrong value.
    """
    parser = argparse.ArgumentParser(description="Cats or dogs behind LitServe", allow_abbrev=False)
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="type of weights and activations")
    parser.add_argument(
        "--allow-emulated", action="store_true", help="bf16 on a GPU without units for it, by way of fp32"
    )
    parser.add_argument(
        "--max-batch-size", type=positive_integer, default=1, help="most requests in a batch (default 1: no batching)"
    )
    parser.add_argument(
        "--batch-timeout",
        type=number_of_zero_or_more,
        default=0.0,
        help="seconds for which a free worker that has a request waits for more (default 0)",
    )
    parser.add_argument(
        "--workers-per-device", type=positive_integer, default=1, help="processes with a model of their own (default 1)"
    )
    parser.add_argument("--accelerator", choices=("auto", "cpu", "cuda"), default="auto", help="device of the model")
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny", help="dimensions of the model (default tiny)")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="seed of the random weights")
    parser.add_argument("--weights", type=existing_file, help="a state dict instead of random weights")
    parser.add_argument(
        "--threads", type=positive_integer, help="torch threads of a worker (default 1 on CPU, else torch's)"
    )
    parser.add_argument("--port", type=positive_integer, default=8000, help="port to listen on (default 8000)")
    parser.add_argument(
        "--slowdown",
        type=number_of_zero_or_more,
        # A variable, because an argument would make another workload, which has no baseline.
        default=os.environ.get("CATDOG_SLOWDOWN", "0"),
        help="0.3 makes pictures and batches take 30 %% longer (default: what CATDOG_SLOWDOWN says, else 0)",
    )
    return parser.parse_args(arguments)


def main() -> None:
    """Serve until the process is ended."""
    options = parse_options(sys.argv[1:])
    server = ls.LitServer(
        CatDog(options), accelerator=options.accelerator, devices=1, workers_per_device=options.workers_per_device
    )
    server.run(host="127.0.0.1", port=options.port, generate_client_file=False)


def _spin_until_ns(end_ns: float) -> None:
    # Slower code keeps its core busy. A sleep would lend it to the other processes and hide the slowdown.
    while time.perf_counter_ns() < end_ns:
        pass


def positive_integer(text: str) -> int:
    """Read an argument's value; argparse names this function if it is not an integer."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def number_of_zero_or_more(text: str) -> float:
    """Read an argument's finite value."""
    number = float(text)
    if not math.isfinite(number) or number < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 0 or more")
    return number


def existing_file(text: str) -> Path:
    """Read an argument's value as an existing file."""
    file = Path(text)
    if not file.is_file():
        raise argparse.ArgumentTypeError(f"no file {text}")
    return file.resolve()


if __name__ == "__main__":
    main()
