"""Counting a torch model's operations, in a process of the interpreter that has torch."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeGuard

from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.process.child import Command, Process, owned_folder
from pytest_gpuserve.roofline.peak import Work
from pytest_gpuserve.servers.base import Site, inherited_environment, with_own_package
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.servers.base import Argument

MODULE: Final = "pytest_gpuserve.servers.inside.torch_flops"

DTYPES: Final = frozenset(
    {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"}
)
"""torch's names of the types of inputs."""

DEFAULT_DTYPE: Final = "float32"

QUIET: Final = {"CUDA_VISIBLE_DEVICES": "", "TORCHDYNAMO_DISABLE": "1"}
"""Variables of the counting process: a card that is being measured is left alone, and nothing is compiled."""

COUNT_SECONDS: Final = 300.0
"""Longest wait for a count: torch is imported, the model built and executed once."""


def count_flops(
    model: str,
    inputs: Mapping[str, Sequence[int]],
    *,
    folder: Path,
    dtypes: Mapping[str, str] | None = None,
    args: Mapping[str, Argument] | None = None,
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
    timeout_seconds: float = COUNT_SECONDS,
) -> Work:
    """Count what one request to a torch model costs, by ``torch.utils.flop_counter``.

    It has formulas for matrix products, convolutions and attention, and counts a multiply-add as two; of the others
    those that are more than an operation or two for each element are named in ``uncounted``. Kernels that torch does
    not know of (a library's own launches, what a module does in numpy) are neither counted nor named.

    The model is built and executed on the meta device: no weights, no values. One that looks at values (a mask for a
    padding, an ``if`` on a tensor) is built and executed once on the CPU, with random weights; no card is used.

    Args:
        model: ``FILE.py:CALLABLE``, where the callable returns a ``torch.nn.Module``.
        inputs: The shapes of one request, batch and all, by the names of the parameters of ``forward``; of a single
            input the name may be any.
        folder: What the file is relative to.
        dtypes: torch's names of the types of inputs that are not ``float32``, such as ``int64``.
        args: Keyword arguments of the callable.
        python: Interpreter that has torch.
        env: Variables for it on top of this process's.
        timeout_seconds: Longest wait.

    Raises:
        UsageProblem: There is no such file, or an input has no shape or type.
        GpuserveError: It could not be counted, or nothing of it has a formula.
        ServerFailed: The interpreter cannot be started.
    """
    call = f"count_flops({model!r})"
    file, _, name = str(model).rpartition(":")
    path = (folder / file).resolve()
    if not file or not name or not path.is_file():
        raise UsageProblem(
            f"{call}: a file and what in it returns the model",
            found=f"there is no file {path}" if file else "no file",
            remedies=['count_flops("apps/resnet.py:resnet18", ...)', "name the file relative to the test file"],
        )
    options = {
        "model": str(path),
        "callable": name,
        "arguments": _arguments(call, args),
        "inputs": json.dumps(_checked(call, inputs, dtypes or {})),
    }
    environment = {**inherited_environment(os.environ), **(env or {}), **QUIET}
    with owned_folder("gpuserve-flops-") as (place, _):
        answer = place / "answer.json"
        flags = [f"--{option}={value}" for option, value in options.items()]
        argv = (python, "-m", MODULE, *flags, f"--answer={answer}")
        command = Command(argv, with_own_package(Site(place), environment), path.parent, place / "log")
        with Process.start(command) as process:
            ended = process.wait(timeout_seconds) is not None
            if not ended or not answer.is_file():
                raise GpuserveError(
                    f"{call}: its operations could not be counted",
                    found=process.describe_exit() if ended else f"no answer in {format_seconds(timeout_seconds)}",
                    looked=[python],
                    remedies=["name an interpreter that has torch: python=...", "pip install 'pytest-gpuserve[torch]'"],
                    log_tail=process.tail(),
                )
            told = json.loads(answer.read_text())
    return _work(call, told)


def _arguments(call: str, args: Mapping[str, Argument] | None) -> str:
    try:
        return json.dumps(dict(args or {}))
    except (TypeError, ValueError) as problem:
        raise UsageProblem(
            f"{call}: args are keyword arguments of the callable: text, numbers, true and false", found=str(problem)
        ) from None


def _work(call: str, told: Mapping[str, object]) -> Work:
    """The answer of the program as a value. Raises GpuserveError where it failed, or counted nothing."""
    if "problem" in told:
        raise GpuserveError(
            f"{call}: its operations could not be counted",
            found=str(told["problem"]),
            remedies=["give the shapes and types of one request: inputs and dtypes={...} of count_flops"],
            log_tail=str(told["trace"]),
        )
    flops, uncounted = told["flops"], told["uncounted"]
    assert isinstance(flops, int)
    assert isinstance(uncounted, list)
    if not flops:
        raise GpuserveError(
            f"{call}: nothing of it has a formula for its operations",
            found=", ".join(uncounted) or "no operator at all that calculates",
            remedies=[
                "give formulas in the model's file: torch.utils.flop_counter.register_flop_formula",
                "or give the operations of a request yourself: Work(flops=...)",
            ],
        )
    return Work(flops=flops, uncounted=tuple(uncounted))


def _checked(call: str, inputs: object, dtypes: object) -> list[tuple[str, list[int], str]]:
    """Names, shapes and types of inputs. Raises UsageProblem where one is invalid."""
    help_ = ['count_flops("model.py:build", {"input_ids": (1, 128)}, dtypes={"input_ids": "int64"})']
    if not isinstance(inputs, Mapping) or not inputs:
        raise UsageProblem(f"{call} needs the shapes of a request's inputs, by name", remedies=help_)
    if not isinstance(dtypes, Mapping):
        raise UsageProblem(f"{call}: dtypes={dtypes!r} are no types by name", remedies=help_)
    unknown = sorted(dtypes.keys() - inputs.keys())
    if unknown:
        raise UsageProblem(f"{call}: dtypes={{...}} names {unknown[0]!r}, which is no input", remedies=help_)
    found = []
    for name, given in inputs.items():
        dtype = dtypes.get(name, DEFAULT_DTYPE)
        if dtype not in DTYPES:
            known = ", ".join(sorted(DTYPES))
            raise UsageProblem(f"{call}: {dtype!r} is no type of {name!r}", found=f"types: {known}", remedies=help_)
        if not _is_shape(given):
            raise UsageProblem(f"{call}: {given!r} is no shape of {name!r}", remedies=help_)
        found.append((name, list(given), dtype))
    return found


def _is_shape(given: object) -> TypeGuard[Sequence[int]]:
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        return False
    return all(type(size) is int and size > 0 for size in given)
