"""The plots of the explanations: ``python -m tests.docs.plots``, which takes a minute.

One is made of every baseline that the history of this repository holds, the other of the simulation that
``tests/verdict/test_power.py`` counts.
"""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import matplotlib as mpl
from matplotlib import pyplot as plt

from pytest_gpuserve.verdict.verdict import Verdict
from tests.fakes.noise_model import TYPICAL
from tests.fakes.simulated import comparisons, outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes

ROOT: Final = Path(__file__).resolve().parents[2]
PICTURES: Final = ROOT / "pytest_gpuserve/docs/pictures"
COUNT: Final = 400
SLOWDOWNS: Final = tuple(step / 200 for step in range(17))
COLOURS: Final = {"passes": "#2e9d5c", "INCONCLUSIVE": "#cc7a00", "REGRESSED": "#d9483b"}


def recorded() -> Mapping[str, Mapping[str, float]]:
    """Throughput by test and day, of every recording on ``cpu`` that was committed."""
    commits = _git("log", "--format=%H", "--", "baselines/cpu").split()
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for commit in commits:
        for file in _git("ls-tree", "-r", "--name-only", commit, "baselines/cpu").split():
            document = json.loads(_git("show", f"{commit}:{file}"))
            for test, entry in document.get("entries", {}).items():
                at = entry["sessions"][-1]["at"]
                found[f"{Path(file).parent.name} {test}"][at[:13]] = document["summary"][test]["throughput"]
    return {test: dict(sorted(values.items())) for test, values in sorted(found.items()) if len(values) > 2}


def draw_recorded(axes: Axes) -> None:
    """Each test's throughput over the days, as a multiple of its lowest."""
    tests = recorded()
    days = sorted({hour for values in tests.values() for hour in values})
    for values in tests.values():
        least = min(values.values())
        axes.plot([days.index(hour) for hour in values], [value / least for value in values.values()], marker="o")
    axes.set_xticks(range(len(days)), labels=[f"{hour[5:10]}, {hour[11:13]} h" for hour in days])
    axes.axhspan(1.0, 1.05, color="#808a94", alpha=0.4, label="a tolerance of 5 %")
    axes.set_yscale("log")
    axes.set_yticks([1, 2, 3, 4, 5], labels=["1", "2", "3", "4", "5"])
    axes.set_ylabel("throughput, lowest recording = 1")
    axes.set_xlabel("recorded at")
    axes.legend(frameon=False)


def draw_told(axes: Axes) -> None:
    """What comes of builds of one machine, by how much slower they really are."""
    pairs = comparisons(TYPICAL, COUNT)
    shares: dict[str, list[float]] = {name: [] for name in COLOURS}
    for slowdown in SLOWDOWNS:
        counts = dict.fromkeys(COLOURS, 0)
        for pair in pairs:
            verdict = outcome(pair.slowed(slowdown)).verdict
            counts["REGRESSED" if verdict is Verdict.REGRESSED else "passes" if verdict.passes else "INCONCLUSIVE"] += 1
        for name, count in counts.items():
            shares[name].append(count / COUNT)
    axes.stackplot([100 * each for each in SLOWDOWNS], *shares.values(), labels=list(COLOURS), colors=COLOURS.values())
    axes.axvline(5, color="white", linestyle=":")
    axes.set(xlabel="the build is really slower by, %", ylabel="share of the comparisons", xlim=(0, 8), ylim=(0, 1))
    axes.legend(loc="center right")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Write both."""
    # The same data make the same file, and letters stay letters.
    mpl.rcParams.update({"svg.hashsalt": "gpuserve", "svg.fonttype": "none", "font.size": 10})
    for name, draw in (("recorded", draw_recorded), ("told", draw_told)):
        figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
        draw(axes)
        figure.savefig(PICTURES / f"{name}.svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
