"""Bytes in pieces, as a network delivers them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """Cut data at these places, wherever they are; no piece is empty."""
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[begin:end] for begin, end in pairwise(ends)]
