"""The result of the self-test: what was found, what was falsely found, and how long it took."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.units import format_fraction, format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NARROWEST: Final = 80
"""Columns below which the tables are not made narrower."""

UNKNOWN: Final = "-"

_SHOWN: Final = (Verdict.PASS, Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.INVALID)


@dataclass(frozen=True)
class CaseResult:
    """What the comparisons of one kind came to.

    Args:
        verdicts: How often each verdict came; IMPROVED is among PASS.
        alarms: How often it was said to be worse: for wrong answers INVALID for just that, else REGRESSED.
        bounds: Of the share of alarms, 95 % confidence; 0 to 1 where none was made.
        median_seconds: Time to the verdict, starts of servers included; None where there was none.
        p90_seconds: The same, exceeded by one in ten.
        median_share: Windows that were needed, as a share of what a fixed design would have measured.
    """

    name: str
    expected: Verdict
    planned: int
    verdicts: Mapping[Verdict, int]
    alarms: int
    bounds: tuple[float, float]
    median_seconds: float | None = None
    p90_seconds: float | None = None
    median_share: float | None = None

    @property
    def made(self) -> int:
        """Comparisons that were made."""
        return sum(self.verdicts.values())


@dataclass(frozen=True)
class SelftestResult:
    """All that the self-test has found so far.

    Args:
        failures: Why the self-test fails, a line each; empty where it passes.
        problems: What was wrong with comparisons that came to nothing, a line each.
        interrupted: Whether it was cut short by Ctrl-C.
    """

    cases: Sequence[CaseResult]
    failures: Sequence[str]
    problems: Sequence[str]
    fixed_windows: int
    interrupted: bool = False


def selftest_report(result: SelftestResult, *, width: int, color: bool) -> str:
    """Write the result."""
    console = Console(
        file=io.StringIO(), width=max(width, NARROWEST), force_terminal=color, no_color=not color, highlight=False
    )
    with console.capture() as captured:
        console.print(_verdicts(result.cases))
        console.print(_times(result.cases))
        for line in (*_remarks(result), *_conclusion(result)):
            console.print(line)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    # Each table brings an empty line above and below it.
    kept = [line for before, line in zip(["", *lines], lines, strict=False) if before or line]
    return "\n".join(kept).strip("\n")


def _verdicts(cases: Sequence[CaseResult]) -> Table:
    grid = _grid("candidate", "made", *map(str, _SHOWN), "alarms (95 %)")
    for case in cases:
        counts = []
        for verdict in _SHOWN:
            count = case.verdicts.get(verdict, 0)
            right = verdict is case.expected
            counts.append(Text(str(count), style="" if not count else "green" if right else "yellow"))
        low, high = case.bounds
        bounds = f"{low * 100:.0f} .. {high * 100:.0f} %" if case.made else UNKNOWN
        grid.add_row(Text(case.name), f"{case.made}/{case.planned}", *counts, bounds)
    return grid


def _times(cases: Sequence[CaseResult]) -> Table:
    grid = _grid("time to verdict", "median", "p90", "windows needed")
    for case in cases:
        share = UNKNOWN if case.median_share is None else format_fraction(case.median_share)
        grid.add_row(Text(case.name), _seconds(case.median_seconds), _seconds(case.p90_seconds), share)
    return grid


def _grid(first: str, *others: str) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, expand=False)
    grid.add_column(first, no_wrap=True)
    for name in others:
        grid.add_column(name, justify="right")
    return grid


def _remarks(result: SelftestResult) -> list[Text]:
    lines = [
        (
            "alarms: it was said to be worse, by REGRESSED, or of wrong answers by INVALID for just that. Of identical"
            " builds these are false. The last column is what their true share may be: few comparisons prove little."
        ),
        (
            f"windows needed: as a share of the {result.fixed_windows} of a fixed design; this and the times are to the"
            " verdict, or to giving up."
        ),
    ]
    left_out = [f"{case.name} {case.planned - case.made}" for case in result.cases if case.made < case.planned]
    if left_out:
        lines.append(f"not reached{' before Ctrl-C' if result.interrupted else ' in the time'}: {', '.join(left_out)}")
    return [Text(line) for line in (*lines, *result.problems)]


def _conclusion(result: SelftestResult) -> list[Text]:
    if result.interrupted:
        return [Text("self-test interrupted: not decided", style="yellow")]
    if result.failures:
        return [Text("self-test FAILED", style="red"), *(Text(f"  {line}") for line in result.failures)]
    return [Text("self-test passed", style="green")]


def _seconds(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else format_seconds(seconds)
