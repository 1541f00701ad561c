"""How often the verdict side by side is right and wrong: ``python -m tests.benchmarks.power``, some minutes.

Simulated builds on the three machines of ``tests/fakes/simulated.py``, throughput, whose cost may grow by 5 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Final

from pytest_gpuserve.verdict.verdict import Verdict
from tests.benchmarks.verdicts import markdown
from tests.fakes.simulated import NOISES, Comparison, Noise, by_default, comparisons, outcome, with_history

Make = Callable[[Noise, int], list[Comparison]]


PRIORS: Final[dict[str, Make]] = {
    "default": by_default,
    "learned": comparisons,
    "3 sessions, 2 comparisons": partial(with_history, sessions=3, past=2),
}
SLOWDOWNS: Final = (0.0, 0.03, 0.05, 0.10, 0.15)


def row(noise: Noise, prior: str, count: int) -> tuple[str, ...]:
    """Outcomes of builds of one machine with one prior."""
    pairs = PRIORS[prior](noise, count)
    cells = [noise.name, prior]
    for slowdown in SLOWDOWNS:
        ends = [outcome(pair.slowed(slowdown)) for pair in pairs]
        regressed = sum(end.verdict is Verdict.REGRESSED for end in ends) / count
        cells.append(f"{regressed:.{3 if slowdown else 4}f}")
        if slowdown in {0.0, 0.05, 0.15}:
            cells.append(f"{median(end.windows for end in ends):g}")
        if slowdown == 0.05:
            cells.append(f"{sum(end.verdict.passes for end in ends) / count:.3f}")
    return tuple(cells)


COLUMNS: Final = ("machine", "prior", "identical", "windows", "+3 %", "+5 %", "windows", "passes", "+10 %", "+15 %")


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table: how many are REGRESSED, pass at +5 %, and how many windows it takes (median; a start is 20)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=1_500, help="of each row (default 1500)")
    count = parser.parse_args(argv).comparisons
    cells = [row(noise, prior, count) for prior in PRIORS for noise in NOISES]
    print(markdown((*COLUMNS, "windows"), cells))  # noqa: T201 -- a program


if __name__ == "__main__":
    main()
