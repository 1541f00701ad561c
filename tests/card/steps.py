"""What is run on a machine with a card, in the order of its worth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.card.groups import CORE, ROOT, TRITON

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Step:
    """A command with its own deadline.

    Args:
        name: Of letters, digits and ``-``.
        seconds: It is ended after so long.
        command: Program and arguments; ``{python}``, ``{gpu}`` and ``{kept}`` are filled in.
        needs: The group of `tests.card.groups` without which it is not tried.
        environment: Variables on top of the machine's.
        status: The exit status that is the right one.
        told: What its log has to say then.
        after: Commands that follow it however it ends.
        changes_settings: Whether it changes settings of the card, which only its owner may.
    """

    name: str
    seconds: float
    command: tuple[str, ...]
    needs: str = CORE
    environment: Mapping[str, str] = field(default_factory=dict)
    status: int = 0
    told: str = ""
    after: tuple[tuple[str, ...], ...] = ()
    changes_settings: bool = False

    def argv(self, *, python: str, gpu: str, kept: Path) -> tuple[str, ...]:
        """Its command on this machine, with which files are left in the folder ``kept``."""
        return tuple(word.format(python=python, gpu=gpu, kept=kept) for word in self.command)


PYTEST: Final = ("{python}", "-m", "pytest", "-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider", "-rA")
"""Without plugins that the machine may have, and without xdist."""

PASSED: Final = " passed"
"""What pytest says where not all tests were skipped."""

ENVIRONMENT: Final = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1"}
"""Of all steps."""

SUITES: Final = {"distilbert": "mosec", "resnet": "suites", "catdog": "litserve", "codegen": TRITON, "tft": TRITON}
"""Suites in the order of their worth, and what each needs."""


def on_card(name: str, seconds: float, only: str, *files: str, **more: object) -> Step:
    """Tests that need a card: those with a word in their names, of all files that have such tests or of some."""
    everywhere = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.gpu\n" in path.read_text())
    names = files or [str(path.relative_to(ROOT)) for path in everywhere]
    return Step(name, seconds, (*PYTEST, "-m", "gpu", "-k", only, *names), told=PASSED, **more)  # type: ignore[arg-type]


def suite(name: str, seconds: float, *arguments: str, needs: str, **more: object) -> Step:
    """A suite, whose results and baselines are kept."""
    kept = (f"--gpuserve-json={{kept}}/{name}.json", f"--gpuserve-report={{kept}}/{name}.html")
    places = ("--baseline-dir={kept}/baselines", "--gpuserve-artifacts={kept}/artifacts")
    command = (*PYTEST, "--gpu={gpu}", *kept, *places, *arguments)
    return Step(name, seconds, command, needs=needs, **{"told": PASSED, **more})  # type: ignore[arg-type]


RECORD: Final = "record"
"""Begins the name of a step that records baselines."""

_MOSEC: Final = ("suites/distilbert/test_distilbert_mosec.py", "-k", "workers1-connections50")

STEPS: Final = (
    Step("doctor", 30, ("{python}", "-m", "pytest_gpuserve.doctor")),
    on_card("nvml", 30, "nvml", "tests/device/test_on_card.py"),
    on_card("sampler", 90, "sampler"),
    on_card("tests", 120, "not nvml and not sampler and not yardstick and not clocks"),
    # One session shows that it works; what it records is weaker than what `record-resnet` does, and not brought back.
    suite(
        "worker",
        120,
        "suites/resnet/test_resnet_steady.py",
        *("-k", "batch1-", "-o", "gpuserve_sessions=1", "--baseline-update", "--baseline-dir={kept}/worker"),
        needs="suites",
    ),
    *(suite(f"smoke-{name}", 60, f"suites/{name}", "-m", "smoke", needs=needs) for name, needs in SUITES.items()),
    suite(f"{RECORD}-mosec", 150, *_MOSEC, "--baseline-update", needs="mosec"),
    suite(
        "gate-slower",
        90,
        *_MOSEC,
        "--no-confirm",
        "--gpuserve-budget=60",
        needs="mosec",
        environment={"DISTILBERT_SLOWDOWN": "0.1"},
        status=1,
        told="REGRESSED",
    ),
    suite("gate-same", 90, *_MOSEC, "--no-confirm", "--gpuserve-budget=60", needs="mosec"),
    on_card("yardstick", 60, "yardstick"),
    on_card(
        "clocks",
        60,
        "clocks",
        changes_settings=True,
        environment={"GPUSERVE_MAY_SET_CLOCKS": "1"},
        after=(("nvidia-smi", "--reset-gpu-clocks"),),
    ),
    *(
        suite(f"{RECORD}-{name}", 240, f"suites/{name}", "--baseline-update-new", needs=needs)
        for name, needs in SUITES.items()
    ),
)
