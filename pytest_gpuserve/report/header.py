"""The line before the first test: on what and against what is measured."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuserve.report.names import printable
from pytest_gpuserve.units import format_seconds


@dataclass(frozen=True)
class Header:
    """What it says.

    Args:
        device: Name of the device, and of its baselines.
        product: What it is.
        mode: What is done, with whom: ``gating against /.../baselines/T4``.
        budget_seconds: Most measuring time of one test.
        comparisons: How many the collected tests will make, as far as their code tells.
        stock: The baselines that are there, in words; empty where they are not asked.
    """

    device: str
    product: str
    mode: str
    budget_seconds: float
    comparisons: int
    stock: str = ""

    def __str__(self) -> str:
        planned = f"{self.comparisons} comparison{'s' if self.comparisons != 1 else ''} planned"
        stock = f" ({self.stock})" if self.stock else ""
        budget = f"at most {format_seconds(self.budget_seconds)} of measuring a test"
        return printable(f"{self.device} ({self.product}), {self.mode}{stock}, {budget}, {planned}")
