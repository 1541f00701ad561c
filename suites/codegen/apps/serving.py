"""What the three models read of their environment, and how they answer."""

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
"""Folder with real weights and their vocabulary, as transformers saves them; none: random weights."""

PRECISION = "CODEGEN_PRECISION"
"""``fp32`` or ``fp16``."""

SLOWDOWN = "CODEGEN_SLOWDOWN"
"""0.3 makes every batch take 30 % longer: the way to see a gate turn red."""


def chosen(name: str, known: tuple[str, ...], environment: Mapping[str, str] = os.environ) -> str:
    """Read a variable that has one of some values; by default the first.

    Raises:
        ValueError: It has another.
    """
    value = environment.get(name, known[0])
    if value not in known:
        raise ValueError(f"{name} is {value!r}, which is none of {', '.join(known)}")
    return value


def checkpoint(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Read the folder of the checkpoint; None where there is none.

    Raises:
        ValueError: It is no folder.
    """
    value = environment.get(CHECKPOINT, "")
    if value and not Path(value).is_dir():
        raise ValueError(f"{CHECKPOINT} is {value!r}, which is no folder")
    return Path(value).resolve() if value else None


def slowdown(environment: Mapping[str, str] = os.environ) -> float:
    """Read by how much every batch is to take longer, as a share of its time.

    Raises:
        ValueError: It is no number of 0 or more.
    """
    value = environment.get(SLOWDOWN, "0")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"{SLOWDOWN} is {value!r}, which is no number of 0 or more")
    return number


def answer_each(requests: list[Any], answer: Callable[[Any], list[Any]], backend: Any) -> list[Any]:  # noqa: ANN401 -- Triton's module
    """Answer requests one by one; what is wrong with one of them is told to its client alone.

    Args:
        requests: Of Triton.
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
