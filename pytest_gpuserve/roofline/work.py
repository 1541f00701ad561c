"""The arithmetic that one request costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from pytest_gpuserve.errors import UsageProblem

FLOPS_PER_MAC: Final = 2
"""A multiply-add is a multiplication and an addition."""


def is_positive(number: object) -> bool:
    """Whether it is a finite number above 0."""
    return isinstance(number, (int, float)) and not isinstance(number, bool) and 0 < number < math.inf


@dataclass(frozen=True, kw_only=True)
class Work:
    """Floating-point operations of one request; a multiply-add is two of them.

    Tools that speak of "GFLOPs" and count multiply-adds (thop, fvcore, ptflops, most tables of vision models) give
    half of this: take theirs with `Work.of_macs`.

    Args:
        flops: The operations.
        uncounted: Kinds of operators that were executed and have no formula, such as ``aten.native_layer_norm``; they
            count as nothing. Empty where nobody counted.

    Raises:
        UsageProblem: The operations are no finite number above 0.
    """

    flops: float
    uncounted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_positive(self.flops):
            raise UsageProblem(
                f"Work(flops=...) is a finite number above 0, not {self.flops!r}",
                remedies=["Work(flops=8.909e9)", "Work.of_macs(4.4548e9)"],
            )

    @classmethod
    def of_macs(cls, macs: float) -> Work:
        """The work of so many multiply-adds.

        Raises:
            UsageProblem: They are no finite number above 0.
        """
        return cls(flops=FLOPS_PER_MAC * macs)

    @property
    def macs(self) -> float:
        """The same in multiply-adds."""
        return self.flops / FLOPS_PER_MAC
