"""Throughput against the 99th percentile of the latency: what a server gives for what it makes people wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.report.html.figure import PALETTE, QUIET, Figure, Panel, Point, Series, colour, shared_axis
from pytest_gpuserve.report.names import short_name
from pytest_gpuserve.units import format_rate, format_ratio, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.report.html.measured import MeasuredRun
    from pytest_gpuserve.report.html.text import Texts

MOST_SERIES: Final = len(PALETTE)
"""Tests with a colour of their own; the loads of all further ones share a quiet one."""

_QUANTILE: Final = 0.99


@dataclass(frozen=True)
class _Point:
    name: str
    label: str
    order: float
    throughput: float
    p99: float
    batch: float | None


def throughput(runs: Sequence[MeasuredRun], texts: Texts) -> Figure | None:
    """Draw every load, those of one test with other parameters as a line; None where nothing was answered.

    A point is labelled by the users where these differ along the line, else by the mean batch.
    """
    lines: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        lines.setdefault(run.series, []).append(run)
    known = {series: points for series, alike in lines.items() if (points := _points(alike))}
    if not known:
        return None
    # Lines first: a colour of its own helps where there is something to follow.
    ordered = sorted(known.items(), key=lambda item: -len(item[1]))
    series = [
        _series(points, texts.short(short_name(name)), colour(place), line="solid" if len(points) > 1 else "")
        for place, (name, points) in enumerate(ordered[:MOST_SERIES])
    ]
    rest = [point for _, points in ordered[MOST_SERIES:] for point in points]
    if rest:
        series.append(_series(rest, "further tests", QUIET, line=""))
    every = [point for points in known.values() for point in points]
    return Figure(
        "Throughput against p99",
        shared_axis("throughput", "1/s", (point.throughput for point in every)),
        (Panel(shared_axis("latency p99", "s", (point.p99 for point in every)), tuple(series), height=320),),
        notes=("Points are labelled by users (c) or by the mean batch (b). Further right and lower is better.",),
        is_wide=True,
    )


def _points(runs: Sequence[MeasuredRun]) -> list[_Point]:
    by_users = len({run.users for run in runs if run.users is not None}) > 1
    found = []
    for run in runs:
        if run.steps:
            found += [
                _Point(
                    run.name,
                    f"c={step.users}",
                    step.users,
                    step.throughput,
                    step.latency.quantile(_QUANTILE),
                    None,
                )
                for step in run.steps
                if step.latency.total
            ]
        elif run.summary is not None:
            label, order = _label(run, by_users=by_users)
            found.append(
                _Point(run.name, label, order, run.summary.throughput, run.summary.quantile(_QUANTILE), run.batch)
            )
    return sorted(found, key=lambda point: point.order)


def _label(run: MeasuredRun, *, by_users: bool) -> tuple[str, float]:
    """What a point is labelled by, and its place on the line."""
    if run.users is not None and (by_users or run.batch is None):
        return f"c={run.users}", run.users
    if run.batch is not None:
        return f"b={format_ratio(run.batch)}", run.batch
    return "", 0.0


def _series(points: Sequence[_Point], name: str, own: str, *, line: str) -> Series:
    return Series(
        name, own, tuple(Point(each.throughput, each.p99, _told(each), each.label) for each in points), line=line
    )


def _told(point: _Point) -> str:
    said = [
        point.label,
        format_rate(point.throughput),
        f"p99 {format_seconds(point.p99)}",
        "" if point.batch is None else f"mean batch {format_ratio(point.batch)}",
    ]
    return f"{point.name}: {', '.join(part for part in said if part)}"
