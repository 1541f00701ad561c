"""A program that counts the operations of one execution of a model, with nothing of it in memory where that works."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.servers.inside.torch_model import load_callable, parameter_names, random_model

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

META: Final = "meta"
CPU: Final = "cpu"

SEED: Final = 0
"""Of weights and inputs, where the model has to be executed really."""

MOST_FRAMES: Final = 10
"""Of a traceback, the last ones."""

NO_ARITHMETIC: Final = frozenset(
    {
        *("_local_scalar_dense", "_reshape_copy", "_to_copy", "_unsafe_view", "all", "any", "arange", "cat", "clone"),
        *("constant_pad_nd", "copy", "copy_", "embedding", "empty", "empty_like", "fill", "fill_", "flip", "full"),
        *("full_like", "gather", "index", "index_select", "lift_fresh", "lift_fresh_copy", "new_empty", "new_full"),
        *("new_ones", "new_zeros", "ones", "ones_like", "repeat", "roll", "scalar_tensor", "select_scatter"),
        *("slice_scatter", "stack", "unsafe_split", "unsafe_split_with_sizes", "zeros", "zeros_like"),
    }
)
"""Operators of torch's own that only make and move values."""


class InputSpec(NamedTuple):
    """An input by name: its shape, and torch's name of its type."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Count(NamedTuple):
    """Operations, and the kinds of operators that were executed without a formula for theirs."""

    flops: int
    uncounted: list[str]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the `answer` to a file, as JSON."""
    options = _parser().parse_args(arguments)
    sys.path.insert(0, str(options.model.parent))
    inputs = [InputSpec(name, tuple(shape), dtype) for name, shape, dtype in json.loads(options.inputs)]
    told = answer(options.model, options.callable, json.loads(options.arguments), inputs)
    hidden = options.answer.with_suffix(".new")
    hidden.write_text(json.dumps(told))
    hidden.replace(options.answer)


def answer(file: Path, name: str, arguments: Mapping[str, object], inputs: Sequence[InputSpec]) -> dict[str, object]:
    """Count what a callable of a file builds: a `Count` by name, or ``problem`` and ``trace``."""
    try:
        return dict(count(load_callable(file, name), arguments, inputs)._asdict())
    except GpuserveError as problem:
        said = "; there is: ".join(filter(None, (problem.summary, problem.found)))
        return {"problem": said.removeprefix("torch_worker: "), "trace": ""}
    except Exception as problem:  # noqa: BLE001 -- whatever the user's file raised
        return {"problem": f"{type(problem).__name__}: {problem}", "trace": _trace(problem)}


def count(build: Callable[..., Any], arguments: Mapping[str, object], inputs: Sequence[InputSpec]) -> Count:
    """Count the operations of one execution, on the meta device; really, on the CPU, where the model needs values.

    Raises:
        ServerFailed: What was built is no module.
        Exception: What the callable or the model raised.
    """
    try:
        return _count_on(META, build, arguments, inputs)
    except Exception as problem:
        if not (isinstance(problem, NotImplementedError) or META in str(problem)):
            raise
    return _count_on(CPU, build, arguments, inputs)


def _count_on(
    device: str, build: Callable[..., Any], arguments: Mapping[str, object], inputs: Sequence[InputSpec]
) -> Count:
    with torch.device(device), torch.no_grad():
        model = random_model(build, arguments, SEED).eval()
        values = {each.name: _value(each, device) for each in inputs}
        names = parameter_names(model)
        counter = FlopCounterMode(display=False)
        watch = _Watch(counter.flop_registry)
        # The counter is entered last: what it takes apart reaches the watch in its parts.
        with _unfused(), watch, counter:
            if names.issuperset(values):
                model(**values)
            elif len(values) == 1:
                model(*values.values())
            else:
                unknown = ", ".join(sorted(values.keys() - names))
                raise TypeError(f"forward() has no {unknown}; it takes {', '.join(sorted(names))}")
    return Count(counter.get_total_flops(), sorted(watch.uncounted))


class _Watch(TorchDispatchMode):  # type: ignore[misc] # torch has no types here
    """Notes which executed operators have no formula and are more than an operation or two for each element."""

    def __init__(self, formulas: Container[object]) -> None:
        super().__init__()
        self.uncounted: set[str] = set()
        self._formulas = formulas

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 -- torch's
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 -- a tensor
        packet = func.overloadpacket
        light = func.is_view or torch.Tag.pointwise in func.tags
        if not light and packet not in self._formulas and not self._only_moves(packet):
            self.uncounted.add(str(packet))
        return func(*args, **(kwargs or {}))

    def _only_moves(self, packet: object) -> bool:
        namespace, _, name = str(packet).partition(".")
        return namespace == "aten" and name in NO_ARITHMETIC


@contextlib.contextmanager
def _unfused() -> Iterator[None]:
    """Keep torch from executing attention and recurrent layers as one operator without a formula."""
    onednn = torch.backends.mkldnn.enabled
    # Not its flags(), which warns of settings that it only puts back.
    torch.backends.mkldnn.enabled = False
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mkldnn.enabled = onednn


def _value(given: InputSpec, device: str) -> Any:  # noqa: ANN401 -- a tensor
    """A tensor of that shape: numbers around zero, indices that every table has, masks that let all through."""
    dtype = getattr(torch, given.dtype)
    if dtype == torch.bool:
        return torch.ones(given.shape, dtype=dtype, device=device)
    if not dtype.is_floating_point:
        return torch.zeros(given.shape, dtype=dtype, device=device)
    return torch.randn(given.shape, device=device).to(dtype)


def _trace(problem: Exception) -> str:
    """Where it was raised, without what torch and this program called on the way."""
    between = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frames = traceback.extract_tb(problem.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(between)]
    return "".join(traceback.format_list(outside[-MOST_FRAMES:]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torch_flops", allow_abbrev=False)
    parser.add_argument("--model", type=Path, required=True, help="the file with the callable")
    parser.add_argument("--callable", required=True, help="what returns the module")
    parser.add_argument("--arguments", default="{}", help="its keyword arguments, as JSON")
    parser.add_argument("--inputs", required=True, help="[[name, shape, type], ...], as JSON")
    parser.add_argument("--answer", type=Path, required=True, help="the file to write")
    return parser


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    # An orderly exit would wait for threads of whatever the user's file started.
    os._exit(0)
