"""The charts of the suites: what is in an SVG, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from suites import charts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest.importorskip("matplotlib")

SVG = "{http://www.w3.org/2000/svg}"


def _latency(path: Path) -> None:
    charts.latency_and_throughput(
        path, ["batch 1", "batch 8"], {"p50": [0.010, 0.020], "p99": [0.015, 0.040]}, [100.0, 50.0]
    )


def _stacked(path: Path) -> None:
    charts.stacked(path, [8, 16], {"queue": [0.001, 0.003], "compute": [0.002, 0.002]}, [100.0, 120.0], "Users")


def _panels(path: Path) -> None:
    charts.panels(
        path,
        [1, 32, 64],
        "Batch size",
        {"p99 (ms)": {"eager": [1.0, None, 3.0], "compiled": [1.0, 2.0, 2.0]}, "GPU (%)": {"eager": [None] * 3}},
        log_x=True,
    )


def _tradeoff(path: Path) -> None:
    charts.tradeoff(path, {"mosec": [(100.0, 0.010, "8 users"), (150.0, 0.030, "16 users")], "none": []})


DRAW = {"latency": _latency, "stacked": _stacked, "panels": _panels, "tradeoff": _tradeoff}
"""A small chart of each kind."""

TEXTS = {
    "latency": {"batch 1", "batch 8", "p50", "p99", "Latency (ms)", "Throughput (requests/s)"},
    "stacked": {"8", "16", "Users", "queue", "compute", "Mean latency (ms)", "Throughput (requests/s)"},
    "panels": {"1", "32", "64", "Batch size", "p99 (ms)", "GPU (%)", "eager", "compiled", "not measured"},
    "tradeoff": {"8 users", "16 users", "mosec", "p99 latency (ms)", "Throughput (requests/s)"},
}
"""What each has to say."""


def _texts(path: Path) -> list[str]:
    return ["".join(text.itertext()) for text in ET.parse(path).iter(f"{SVG}text")]


@pytest.mark.parametrize("kind", DRAW)
def test_a_chart_is_an_svg_that_names_what_it_shows(kind: str, tmp_path: Path) -> None:
    """Axes with their units, every series and every point's label are readable text; folders are made.

    Drawn again it is the same byte for byte, without a date: in a repository it changes only with its numbers.
    """
    path, again = tmp_path / "new" / "folder" / "chart.svg", tmp_path / "again.svg"
    DRAW[kind](path)
    DRAW[kind](again)
    assert ET.parse(path).getroot().tag == f"{SVG}svg"
    assert TEXTS[kind] <= set(_texts(path))
    assert path.read_bytes() == again.read_bytes()
    assert b"date" not in path.read_bytes().lower()


def test_what_is_drawn_can_be_read(tmp_path: Path) -> None:
    """Latencies in milliseconds, a series once for all panels; of 32 points every second is labelled."""
    path = tmp_path / "chart.svg"
    charts.latency_and_throughput(path, ["batch 1", "batch 8"], {"p99": [0.010, 0.040]}, [1.0, 2.0])
    # The throughput's own axis goes up to 2.
    assert 40.0 in [float(text) for text in _texts(path) if text.replace(".", "").isdigit()]
    _panels(path)
    assert _texts(path).count("eager") == 1
    charts.stacked(path, list(range(8, 257, 8)), {"queue": [0.001] * 32}, [1.0] * 32, "Users")
    texts = set(_texts(path))
    assert {"8", "24", "248"} <= texts
    assert not {"16", "256"} & texts


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda path: charts.latency_and_throughput(path, [], {"p50": []}, []), "nothing to draw: labels is empty"),
        (lambda path: charts.latency_and_throughput(path, ["a"], {}, [1.0]), "nothing to draw: no numbers"),
        (lambda path: charts.latency_and_throughput(path, ["a"], {"p50": [1.0, 2.0]}, [1.0]), "p50 has 2"),
        (lambda path: charts.latency_and_throughput(path, ["a"], {"p50": [1.0]}, []), "throughput has 0"),
        (lambda path: charts.latency_and_throughput(path, ["a"], {"p50": [float("nan")]}, [1.0]), "p50: nan cannot"),
        (lambda path: charts.stacked(path, [1], {"queue": []}, [1.0], "x"), "x has 1 values, queue has 0"),
        (lambda path: charts.stacked(path, [1], {"queue": [1.0]}, [1.0, 2.0], "x"), "line has 2"),
        (lambda path: charts.stacked(path, [float("inf")], {"queue": [1.0]}, [1.0], "x"), "x: inf cannot"),
        (lambda path: charts.panels(path, [1], "x", {"a": {"s": [None]}}), "nothing to draw: no numbers"),
        (lambda path: charts.panels(path, [1], "x", {"a": {"s": [1.0, 2.0]}}), "a: s has 2"),
        (lambda path: charts.panels(path, [0, 1], "x", {"a": {"s": [1.0, 2.0]}}, log_x=True), "no logarithm of x: 0"),
        (lambda path: charts.tradeoff(path, {"s": []}), "nothing to draw: no point"),
        (lambda path: charts.tradeoff(path, {"s": [(1.0, float("nan"), "")]}), "s: nan cannot"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw: Callable[[Path], Any], words: str, tmp_path: Path) -> None:
    """Nothing to draw, unequal lengths and numbers that are none are named, and no file is left."""
    path = tmp_path / "chart.svg"
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        draw(path)
    assert not path.exists()


def test_matplotlib_is_left_as_it_was(tmp_path: Path) -> None:
    """Importing the module imports no matplotlib; drawing imports no pyplot and keeps settings as they are."""
    program = """
import pathlib, sys
from suites import charts
assert "matplotlib" not in sys.modules
import matplotlib
matplotlib.rcParams["axes.facecolor"] = "#123456"
before = matplotlib.rcParams.copy()
charts.tradeoff(pathlib.Path(sys.argv[1]), {"s": [(1.0, 1.0, "")]})
assert "matplotlib.pyplot" not in sys.modules
assert matplotlib.rcParams.copy() == before
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "chart.svg")], check=True, timeout=120)
    assert "#123456" not in (tmp_path / "chart.svg").read_text()
