"""The charts of the suites: the content of their SVGs."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from suites import charts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest.importorskip("matplotlib")

SVG = "{http://www.w3.org/2000/svg}"


CHARTS: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "latency": (
        lambda path: charts.latency_and_throughput(
            path, ["batch 1", "batch 8"], {"p50": [0.010, 0.020], "p99": [0.015, 0.040]}, [100.0, 50.0]
        ),
        {"batch 1", "batch 8", "p50", "p99", "Latency (ms)", "Throughput (requests/s)"},
    ),
    "stacked": (
        lambda path: charts.stacked(
            path, [8, 16], {"queue": [0.001, 0.003], "compute": [0.002, 0.002]}, [100.0, 120.0], "Users"
        ),
        {"8", "16", "Users", "queue", "compute", "Mean latency (ms)", "Throughput (requests/s)"},
    ),
    "panels": (
        lambda path: charts.panels(
            path,
            [1, 32, 64],
            "Batch size",
            {"p99 (ms)": {"eager": [1.0, None, 3.0], "compiled": [1.0, 2.0, 2.0]}, "GPU (%)": {"eager": [None] * 3}},
            log_x=True,
        ),
        {"1", "32", "64", "Batch size", "p99 (ms)", "GPU (%)", "eager", "compiled", "not measured"},
    ),
    "tradeoff": (
        lambda path: charts.tradeoff(
            path, {"mosec": [(100.0, 0.010, "8 users"), (150.0, 0.030, "16 users")], "none": []}
        ),
        {"8 users", "16 users", "mosec", "p99 latency (ms)", "Throughput (requests/s)"},
    ),
}
"""A small chart of each kind, and the texts that it has to have."""


@pytest.mark.parametrize("kind", CHARTS)
def test_a_chart_is_an_svg_that_names_what_it_shows(kind: str, tmp_path: Path) -> None:
    """Axes with units, series and labels of points are readable text, and folders are made.

    A chart that is drawn again is the same byte for byte, so a repository sees only changed numbers.
    """
    path, again = tmp_path / "new" / "folder" / "chart.svg", tmp_path / "again.svg"
    draw, texts = CHARTS[kind]
    draw(path)
    draw(again)
    svg = ET.parse(path)
    assert svg.getroot().tag == f"{SVG}svg"
    assert texts <= {"".join(text.itertext()) for text in svg.iter(f"{SVG}text")}
    assert path.read_bytes() == again.read_bytes()
    assert b"date" not in path.read_bytes().lower()
