"""The pictures of the concepts: ``python -m tests.docs.plots``, which takes a minute.

The plot is made of the simulation that ``tests/verdict/test_power.py`` counts. The flow chart has the questions that
lead to a verdict, in their order.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import matplotlib as mpl
from matplotlib import pyplot as plt

from pytest_gpuserve.verdict.verdict import Verdict
from tests.fakes.noise_model import TYPICAL
from tests.fakes.simulated import comparisons, outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT: Final = Path(__file__).resolve().parents[2]
PICTURES: Final = ROOT / "pytest_gpuserve/docs/pictures"
COUNT: Final = 400
SLOWDOWNS: Final = tuple(step / 200 for step in range(17))
COLOURS: Final = {"passes": "#2e9d5c", "INCONCLUSIVE": "#cc7a00", "REGRESSED": "#d9483b"}


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


QUESTIONS: Final = (
    ("Is there a base?\n(an entry, or --against)", "no", "MISSING"),
    ("Do stored numbers prove 'within tolerance'?\n(only on a GPU, unchanged, host as fast)", "yes", "PASS"),
    ("Can the base run beside the candidate?", "no", "INCONCLUSIVE; on a GPU\nstored numbers decide"),
    ("One more round, beside the base.\nIs it sound, also on a second try?", "no", "INVALID"),
    ("Look: is it proven to be better?", "yes", "IMPROVED"),
    ("Is it proven to be within the tolerance?", "yes", "PASS"),
    ("Is it proven to be worse\nthan a quarter of the tolerance?", "yes", "REGRESSED"),
    ("Are all looks taken, or the budget spent?", "yes", "INCONCLUSIVE"),
)
"""What is asked of a comparison, in this order: the answer that ends it, and its verdict."""

AGAIN: Final = 3
"""The question to which the last one leads back."""


def draw_verdict(axes: Axes) -> None:
    """The questions below one another, each with the answer that leads to a verdict on its right."""
    box = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": "#808a94"}
    last = len(QUESTIONS) - 1
    for place, (question, answer, verdict) in enumerate(QUESTIONS):
        colour = COLOURS.get(verdict, COLOURS["passes" if verdict in {"PASS", "IMPROVED"} else "INCONCLUSIVE"])
        axes.text(2.5, -place, question, ha="center", va="center", bbox=box, zorder=2)
        axes.text(7.2, -place, verdict, ha="center", va="center", color=colour, fontweight="bold")
        axes.annotate("", (5.9, -place), (4.75, -place), arrowprops={"arrowstyle": "->"})
        axes.text(5.3, -place + 0.12, answer, ha="center", color="#5a6570")
        if place < last:
            axes.annotate("", (2.5, -place - 0.7), (2.5, -place - 0.3), arrowprops={"arrowstyle": "->"}, zorder=1)
            axes.text(2.6, -place - 0.5, "yes" if answer == "no" else "no", va="center", color="#5a6570")
    axes.plot([0.5, -0.2, -0.2], [-last, -last, -AGAIN], color="black", linewidth=1)
    axes.annotate("", (0.4, -AGAIN), (-0.23, -AGAIN), arrowprops={"arrowstyle": "->"})
    axes.text(-0.1, -last + 0.12, "no", color="#5a6570")
    axes.set(xlim=(-0.4, 8.8), ylim=(-last - 0.5, 0.5))
    axes.axis("off")


def main() -> None:
    """Write both."""
    # The same data make the same file, and letters stay letters.
    mpl.rcParams.update({"svg.hashsalt": "gpuserve", "svg.fonttype": "none", "font.size": 10})
    for name, draw, height in (("verdict", draw_verdict, 6.4), ("told", draw_told, 3.6)):
        figure, axes = plt.subplots(figsize=(7.5, height), layout="constrained")
        draw(axes)
        figure.savefig(PICTURES / f"{name}.svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
