"""Settings of the three models from their environment, and their way to answer."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SIZE = "CODEGEN_SIZE"
"""``full`` or ``small``."""

CHECKPOINT = "CODEGEN_CHECKPOINT"
"""Folder with real weights and their vocabulary, in transformers' form; without it, weights are random."""

PRECISION = "CODEGEN_PRECISION"
"""``fp32`` or ``fp16``."""

SLOWDOWN = "CODEGEN_SLOWDOWN"
"""0.3 makes every batch take 30 % longer, which turns a gate red."""


def chosen(name: str, known: tuple[str, ...], environment: Mapping[str, str] = os.environ) -> str:
    """Read a variable that has one of some values; the first is the default.

    Raises:
        ValueError: The variable has another value.
    """
    value = environment.get(name, known[0])
    if value not in known:
        raise ValueError(f"{name} is {value!r}, not one of {', '.join(known)}")
    return value


def checkpoint(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Read the folder of the checkpoint; None without one.

    Raises:
        ValueError: The path is not a folder.
    """
    value = environment.get(CHECKPOINT, "")
    if value and not Path(value).is_dir():
        raise ValueError(f"{CHECKPOINT} is {value!r}, which is not a folder")
    return Path(value).resolve() if value else None


def slowdown(environment: Mapping[str, str] = os.environ) -> float:
    """Read the slowdown of every batch, as a share of its time.

    Raises:
        ValueError: The value is not a number of 0 or more.
    """
    value = environment.get(SLOWDOWN, "0")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"{SLOWDOWN} is {value!r}, which is not a number of 0 or more")
    return number


def answer_each(requests: list[Any], answer: Callable[[Any], list[Any]], backend: Any) -> list[Any]:  # noqa: ANN401 -- Triton's module
    """Answer requests one by one; an error in one of them goes only to its client.

    Args:
        requests: Requests of Triton.
        answer: Makes the output tensors of a request.
        backend: ``triton_python_backend_utils``, which only Triton's own process has.
    """
    responses = []
    for request in requests:
        try:
            responses.append(backend.InferenceResponse(answer(request)))
        except ValueError as problem:
            responses.append(backend.InferenceResponse(error=backend.TritonError(str(problem))))
    return responses
