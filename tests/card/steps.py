"""Commands for a machine with a GPU, in the order of their worth, and where the pack lies; standard library alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

PACK: Final = ROOT / ".card"
"""Where the pack lies; git ignores it."""

MANIFEST: Final = "pack.json"

REPOSITORY: Final = "repository.git"
"""In the pack: the commit whose tree is measured."""

MAIN: Final = "main"

TRITON: Final = "triton"
"""An environment on top of `MAIN`, for what needs numpy 1."""

INSTALL_SECONDS: Final = 60.0
"""Most time for looking at the machine and making both environments."""

SLOWED: Final = ("suites/distilbert/apps/distilbert_options.py", '"DISTILBERT_SLOWDOWN", "0"')
"""A file, and a text in it: with 1.0 in the place of 0 a build whose batches take twice as long."""

PYTEST: Final = (
    *("{python}", "-m", "pytest", "-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider"),
    *("-p", "pytest_benchmark.plugin", "-vsrs"),
)
"""Prints each outcome as it comes; without xdist."""

PASSED: Final = " passed"
"""pytest's words if not all tests were skipped."""


@dataclass(frozen=True)
class Step:
    """A command with its own deadline.

    Args:
        name: Of letters, digits and ``-``.
        seconds: It is ended after so long.
        command: Program and arguments; ``{python}``, ``{tree}``, ``{gpu}`` and ``{kept}`` are filled in.
        needs: The environment.
        status: The exit status that is the right one.
        told: Words that its log must have then.
        slowed: Whether it runs in the tree of the slower build.
        spare: Whether it is run only in the time that all others leave.
    """

    name: str
    seconds: float
    command: tuple[str, ...]
    needs: str = MAIN
    status: int = 0
    told: str = ""
    slowed: bool = False
    spare: bool = False


def on_gpu(name: str, seconds: float, file: str, only: str, *, spare: bool = False) -> Step:
    """Tests of a file that need a GPU, by words of their names."""
    # For children that work in folders of their own.
    command = ("env", "PYTHONPATH={tree}", *PYTEST, "-m", "gpu", "-k", only, file)
    return Step(name, seconds, command, told=PASSED, spare=spare)


def suite(name: str, seconds: float, *arguments: str, **more: object) -> Step:
    """Tests of a suite, whose results and baselines are kept."""
    kept = (f"--gpuserve-json={{kept}}/{name}.json", f"--gpuserve-markdown={{kept}}/{name}.md")
    places = ("--gpu={gpu}", "--baseline-dir={kept}/baselines", "--gpuserve-artifacts={kept}/artifacts")
    return Step(name, seconds, (*PYTEST, *places, *kept, *arguments), **{"told": PASSED, **more})  # type: ignore[arg-type]


_DEVICE: Final = "tests/device/test_on_gpu.py"
_WORKER: Final = "tests/servers/test_torch_worker.py"
_MOSEC: Final = ("suites/distilbert/test_distilbert_mosec.py", "-k", "workers1-connections50")
_NEW: Final = ("--baseline-update-new", "-o", "gpuserve_sessions=1")
_SLOWER: Final = {"slowed": True, "status": 1, "told": "REGRESSED"}

STEPS: Final = (
    Step("doctor", 15, ("{python}", "-m", "pytest_gpuserve.doctor")),
    on_gpu("nvml", 20, _DEVICE, "nvml"),
    on_gpu("busy", 25, _DEVICE, "busy or rest"),
    on_gpu("device", 50, _DEVICE, "cuda or memory or full_gpu or divided"),
    on_gpu("servers", 30, _DEVICE, "litserve or under_load"),
    suite("record-mosec", 95, *_MOSEC, "--baseline-update", "-o", "gpuserve_sessions=2"),
    suite("slower", 75, *_MOSEC, "--against=HEAD", "--gpuserve-budget=60", **_SLOWER),
    on_gpu("worker-eager", 30, _WORKER, "on_a_gpu and not compile and not two"),
    on_gpu("worker-graphs", 50, _WORKER, "on_a_gpu and overhead"),
    suite("smoke-tft", 25, "suites/tft", "-m", "smoke", needs=TRITON),
    suite("smoke-codegen", 30, "suites/codegen", "-m", "smoke", needs=TRITON),
    suite("smoke-resnet", 35, "suites/resnet", "-m", "smoke"),
    suite("unchanged", 80, *_MOSEC, "--against=HEAD", "--gpuserve-budget=60", spare=True),
    Step("stored", 80, (*PYTEST, "--gpu={gpu}", "--gpuserve-budget=60", *_MOSEC), told=PASSED, spare=True),
    on_gpu("worker", 120, _WORKER, "two_on_a_gpu or sampler or compile and not overhead", spare=True),
    *(
        suite(f"record-{name}", 240, f"suites/{name}", *_NEW, needs=needs, spare=True)
        for name, needs in (("tft", TRITON), ("codegen", TRITON), ("resnet", MAIN), ("catdog", MAIN))
    ),
)
