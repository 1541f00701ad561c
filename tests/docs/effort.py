"""The table of the page on efforts: ``python -m tests.docs.effort``, which takes half a minute.

It counts what becomes of simulated builds of the three machines of ``tests/fakes/noise_model.py``. A comparison is one
load's throughput at the default tolerance, with the history of three stored sessions, and starts of 6 windows.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_gpuserve.gate.effort import Effort
from tests.fakes.noise_model import NOISES
from tests.gate.test_effort import ends, passed, regressed
from tests.gate.test_power import with_history

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fakes.noise_model import Noise
    from tests.gate.test_power import End

COUNT: Final = 2_000
WINDOW_SECONDS: Final = 0.65
"""With the settling before it."""

SLOWER: Final = (0.03, 0.05, 0.12, 0.20)

HEAD: Final = (
    "| effort | machine | identical: PASS | REGRESSED | 3 % slower | 5 % | 12 % | 20 % | windows, of half | minutes"
    " | of 95 in 100 |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def row(effort: Effort, noise: Noise) -> str:
    """What becomes of builds of a machine."""
    pairs = with_history(noise, COUNT, sessions=3, past=0)
    same = ends(pairs, effort, 0.0)
    found = [regressed(ends(pairs, effort, slower)) for slower in SLOWER]
    half, most = (_windows(same, share) for share in (0.5, 0.95))
    cells = [
        effort.value,
        noise.name,
        _percent(passed(same)),
        _percent(regressed(same)),
        *map(_percent, found),
        f"{half:.0f}",
        *(f"{windows * WINDOW_SECONDS / 60:.1f}" for windows in (half, most)),
    ]
    return f"| {' | '.join(cells)} |"


def budgets() -> list[str]:
    """How many nightly decisions are taken within some times the time in which 95 of 100 are at a merge."""
    lines = []
    for noise in NOISES:
        pairs = with_history(noise, COUNT, sessions=3, past=0)
        enough = _windows(ends(pairs, Effort.MERGE, 0.0), 0.95)
        nightly = [end.windows for end in ends(pairs, Effort.NIGHTLY, 0.0) if end.verdict.passes]
        within = (f"{times}: {np.mean(np.array(nightly) <= times * enough):.1%}" for times in (1, 2, 3, 4, 5))
        lines.append(f"budgets, {noise.name}: {', '.join(within)}")
    return lines


def after_push() -> list[str]:
    """What a merge says of the rounds of a push, and of those that it adds."""
    lines = []
    for noise in NOISES:
        pairs = with_history(noise, COUNT, sessions=3, past=0)
        same, edge = (ends(pairs, Effort.MERGE, each, before=ends(pairs, Effort.PUSH, each)) for each in (0.0, 0.05))
        lines.append(
            f"a merge after a push, {noise.name}: identical REGRESSED {_percent(regressed(same))},"
            f" 5 % slower PASS {_percent(passed(edge))}, REGRESSED {_percent(regressed(edge))}"
        )
    return lines


def _windows(found: Sequence[End], share: float) -> float:
    return float(np.quantile([end.windows for end in found], share, method="higher"))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def main() -> None:
    """Print all of it."""
    rows = (row(effort, noise) for effort in Effort for noise in NOISES)
    sys.stdout.write("\n".join([HEAD, *rows, *budgets(), *after_push(), ""]))


if __name__ == "__main__":
    main()
