"""What a field of a file may hold, and how the numbers in one are rounded."""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e12)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]
Value = Annotated[float, msgspec.Meta(gt=0, lt=1e15)]
"""Of a metric in its unit; the memory of eight cards in bytes is more than ``Positive`` may be."""

Moment = Annotated[
    str, msgspec.Meta(pattern=r"^[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]\+00:00\Z")
]
Hash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{7,64}\Z")]


def rounded(value: float) -> float:
    """A number to six digits: finer than any clock's meaning here, and short in diffs."""
    return float(f"{value:.6g}")
