"""What Ray's errors mean to who makes a load: one line, without its identifiers and without tracebacks."""

from __future__ import annotations

import re
from typing import Final

from pytest_gpuserve.load.validity import one_line

MOST_CHARACTERS: Final = 400

_NOT_IMPORTED: Final = "failed to import on the worker"
_AT: Final = re.compile(r"\bip=([^,)\s]+)")
_FILLERS: Final = ("The actor died unexpectedly before finishing this task", "The actor is dead because its")
_ADVICE: Final = " Some common causes include"


def plain(problem: BaseException) -> str:
    """Say in one line why a call to a worker failed; of a traceback the last line says it."""
    lines = str(problem).strip().splitlines()
    if any(line.startswith(("Traceback", "ray::")) for line in lines):
        lines = lines[-1:]
    # Ray names class, actor, process and namespace in lines that begin with a tab.
    told = one_line(" ".join(line for line in lines if not line.startswith("\t")))
    for filler in _FILLERS:
        told = told.removeprefix(filler).lstrip(": .")
    told = told.partition(_ADVICE)[0] or type(problem).__name__
    return told if len(told) <= MOST_CHARACTERS else f"{told[:MOST_CHARACTERS]}…"


def not_importable(problem: BaseException, version: str) -> str:
    """Say in one line that a node cannot import what a worker is, and what helps; empty if that is not the problem.

    Args:
        problem: What a call to the worker raised.
        version: Of this package here.
    """
    text = str(problem)
    if _NOT_IMPORTED not in text:
        return ""
    found = _AT.search(text)
    where = f"the node {found[1]}" if found else "a node of the cluster"
    why = one_line(text.strip().splitlines()[-1])
    return (
        f"{where} cannot import pytest-gpuserve ({why[:MOST_CHARACTERS]}); it needs the version that is used here, with"
        f" the Python that Ray runs there: pip install pytest-gpuserve=={version}"
    )
