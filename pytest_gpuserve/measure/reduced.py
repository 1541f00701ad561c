"""A session reduced to what a later comparison needs of it: a number a metric, and how well the session knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.measure.points import NotMeasured, point

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.measure.window import Session

ANY_TOLERANCE: Final = 1e9
"""So wide that no number of requests is too small for it; whoever compares knows the real one."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """A session, as far as one metric goes.

    Args:
        y: Mean over its starts of the log cost, see `points.Point`.
        u: Squared standard error of ``y``, as the session's own windows show it.
        starts: Fresh server starts behind it.
        requests: Of the start that has the fewest, to be held against ``gate.metric.requests_needed``.
    """

    y: float
    u: float
    starts: int
    requests: int


def reduced(metric: Metric, session: Session) -> Reduced:
    """Reduce a session.

    Raises:
        NotMeasured: The metric is not known of every start.
    """
    known = point(metric, session, ANY_TOLERANCE)
    return Reduced(known.y, known.u, len(session.starts), min(start.requests for start in session.starts))


def reduced_by_metric(sessions: Sequence[Session]) -> dict[str, tuple[Reduced, ...]]:
    """Reduce sessions, for each metric that all of them know; of no sessions nothing is known."""
    found = {}
    for name, metric in METRICS.items() if sessions else ():
        try:
            found[name] = tuple(reduced(metric, session) for session in sessions)
        except NotMeasured:
            continue
    return found
