"""Known ways in which servers fail to start, recognised by their last words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from typing import TypeVar

    from pytest_gpuserve.errors import GpuserveError

    _Error = TypeVar("_Error", bound=GpuserveError)


class Cause(NamedTuple):
    """A likely cause.

    Args:
        words: What a log says then.
        help: What it most likely is, and what helps.
    """

    words: re.Pattern[str]
    help: str


CAUSES: Final = (
    Cause(
        re.compile(
            r"libpython3[\w.]*: cannot open shared object|_recursion_count|python_backend_stub.*(undefined|shared)"
        ),
        "likely cause: Triton's Python stub did not find the libpython of the interpreter; give an interpreter that was"
        " built with --enable-shared: python=..., or install its library (Debian: libpython3.X)",
    ),
    Cause(
        re.compile(r"CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"),
        "likely cause: the GPU's memory is full; see `nvidia-smi` for who has it, or make the model or its batch"
        " smaller",
    ),
    Cause(
        re.compile(r"Cannot allocate memory|std::bad_alloc|MemoryError|oom-kill|Killed process"),
        "likely cause: the machine's memory is full; make the model smaller or the server's workers fewer",
    ),
    Cause(
        re.compile(r"No space left on device|failed to (open|create|initialize).*shm|/dev/shm"),
        "likely cause: no room left, often in /dev/shm (shared memory; containers have 64 MB: --shm-size=1g)",
    ),
    Cause(
        re.compile(r"[Aa]ddress already in use|EADDRINUSE|failed to bind|Errno 98"),
        "likely cause: somebody else took its port in between; run again, and leave out fixed ports of your own",
    ),
    Cause(
        re.compile(r"get_config_from_handshake_server"),
        "likely cause: an instance of pytriton gives another one second to answer, and on a busy machine that is too"
        " short; run again, or bind one instance",
    ),
    Cause(
        re.compile(r"unable to find backend library for backend"),
        "likely cause: this Triton has no such backend; the wheel's has python and ensembles only, the vendor's"
        " container has all: image=...",
    ),
    Cause(
        re.compile(
            r"failed to load model|load failed for model|failed to load '|unable to find .*model|Error opening .*model"
            r"|must specify .*(platform|backend)|No such file or directory: '[^']*\.(pt|pth|safetensors|onnx|plan|bin)'"
        ),
        "likely cause: a model's file is missing or cannot be read; see the first error in the log, and check the paths"
        " and the model repository's layout (MODEL/config.pbtxt, MODEL/1/...)",
    ),
    Cause(
        re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'|ImportError: cannot import name"),
        "likely cause: a package is missing in the server's interpreter; install it there, or name the interpreter that"
        " has it: python=...",
    ),
    Cause(
        re.compile(r"compiled using NumPy 1\.x|numpy.*ABI|A module that was compiled using NumPy"),
        "likely cause: the server needs numpy below 2; give an interpreter that has one: python=...",
    ),
    Cause(
        re.compile(r"Permission denied|EACCES"),
        "likely cause: a file, socket or device is not readable for this user; see the path in the log",
    ),
)
"""The first that fits is named; the more special ones come first."""


def likely_cause(log: str) -> str:
    """Name the likely cause of a failure by the end of its log; empty if it is none of the known ones."""
    return next((cause.help for cause in CAUSES if cause.words.search(log)), "")


def with_likely_cause(problem: _Error) -> _Error:
    """Put the likely cause, if one is known, before the other remedies of an error."""
    cause = likely_cause(problem.log_tail)
    if cause and cause not in problem.remedies:
        problem.remedies = (cause, *problem.remedies)
    return problem
