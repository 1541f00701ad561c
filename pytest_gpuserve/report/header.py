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
        engine: What makes the loads; empty where processes of this host do.
    """

    device: str
    product: str
    mode: str
    budget_seconds: float
    comparisons: int
    stock: str = ""
    engine: str = ""

    def __str__(self) -> str:
        planned = f"{self.comparisons} comparison{'s' if self.comparisons != 1 else ''} planned"
        stock = f" ({self.stock})" if self.stock else ""
        budget = f"at most {format_seconds(self.budget_seconds)} of measuring a test"
        engine = f", loads made by {self.engine}" if self.engine else ""
        return printable(f"{self.device} ({self.product}), {self.mode}{stock}{engine}, {budget}, {planned}")


def of_workers(header: str, workers: int) -> str:
    """The line for several workers of pytest-xdist, each of which has the same: each collects all tests.

    Args:
        header: That of a worker; of one that has none nothing is said.
        workers: How many there are.
    """
    return f"{header}, {workers} worker{'s' if workers != 1 else ''}" if header else ""
