"""The user's code on the stack: functions that are hidden from pytest's tracebacks do not belong to it."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuserve.process.secrets import masked

if TYPE_CHECKING:
    from types import FrameType

    from pytest_gpuserve.errors import GpuserveError


def calling_file() -> Path:
    """File of the nearest calling function that is not hidden by ``__tracebackhide__``."""
    frame: FrameType = sys._getframe(1)  # noqa: SLF001 -- the public way (inspect.stack) reads every file on the stack
    while _hides(frame) and frame.f_back is not None:
        frame = frame.f_back
    return Path(frame.f_code.co_filename)


def located(problem: GpuserveError) -> str:
    """Text of an error, with the line of the user's code that led to it."""
    others = (str(Path(__file__).parents[1]), str(Path(os.__file__).parent), "<")
    for frame, line in reversed(list(traceback.walk_tb(problem.__traceback__))):
        name = frame.f_code.co_filename
        if not name.startswith(others) and "site-packages" not in name and not _hides(frame):
            return masked(f"{Path(name).name}:{line}: {problem}")
    return masked(str(problem))


def _hides(frame: FrameType) -> bool:
    """Whether a function or its module is hidden, by pytest's rule."""
    return bool(frame.f_locals.get("__tracebackhide__") or frame.f_globals.get("__tracebackhide__"))
