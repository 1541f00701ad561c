"""What else changed between the sessions that a judgement compared: other metrics, and parts of the server's time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.measure.breakdown import profile_of
from pytest_gpuserve.measure.counters import moved
from pytest_gpuserve.measure.points import NotMeasured, pooled_value
from pytest_gpuserve.measure.window import Client, is_searched
from pytest_gpuserve.report.attribution import attribution

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.measure.window import Session


def other_changes(metric: Metric, before: Sequence[Session], after: Sequence[Session]) -> Mapping[str, float]:
    """How all metrics but one stand against what they were before, as plain fractions; without those unmeasured."""
    changes = {}
    for other in METRICS.values():
        try:
            change = pooled_value(other, after) / pooled_value(other, before) - 1
        except NotMeasured:
            continue
        if other != metric:
            changes[other.name] = change
    return changes


def attributed(before: Sequence[Session], after: Sequence[Session]) -> list[str]:
    """Which settings and which part of the server's time moved, in lines; empty where nothing was compared."""
    windows = [[window for session in sessions for window in session.windows] for sessions in (before, after)]
    if not all(windows) or not all(any(window.requests for window in side) for side in windows):
        return []
    clients = [Client.pooled(session.client for session in sessions) for sessions in (before, after)]
    settings = [
        next((start.settings for session in reversed(sessions) for start in session.starts if start.settings), {})
        for sessions in (before, after)
    ]
    if is_searched(start for sessions in (before, after) for session in sessions for start in session.starts):
        # Each at its own capacity: where the time went at two rates explains neither.
        return [*moved(*settings)]
    return [
        *moved(*settings),
        *attribution(profile_of(windows[0], clients[0]), profile_of(windows[1], clients[1])),
    ]
