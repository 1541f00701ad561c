"""The judges of a session's tests, one each, and what verdicts mean for them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.comparisons import compared_metrics
from pytest_gpuserve.items import plain_id
from pytest_gpuserve.markers import one_at_a_time, tolerance_of, tolerances
from pytest_gpuserve.settings import Update
from pytest_gpuserve.trial.judging import TestJudge
from pytest_gpuserve.trial.policy import Policy

if TYPE_CHECKING:
    import pytest

    from pytest_gpuserve.progress import ProgressLine
    from pytest_gpuserve.session.opening import Opened
    from pytest_gpuserve.trial.arena import Arena
    from pytest_gpuserve.trial.measurement import Measurement

FOREIGN_SHARE: Final = 0.05
"""Share of a host's cores that others may always take: a large machine is never quite idle."""


class Judges:
    """Makes a judge for each test that loads, and keeps it.

    Args:
        opened: What the session measures on and against.
        arena: Where builds are compared side by side.
        progress: Shows how loads get on.
    """

    def __init__(self, opened: Opened, arena: Arena, progress: ProgressLine) -> None:
        self._settings = opened.settings
        self._here = opened.here
        self._ledger = opened.ledger
        self._arena = arena
        self._progress = progress
        self._judges: dict[str, TestJudge] = {}

    def begin(self, item: pytest.Item) -> TestJudge:
        """Make the judge of a test; one that is run again goes on with the sessions that it has."""
        nodeid = plain_id(item)
        self._progress.begin(nodeid)
        set_by_markers = tolerances(item, self._here.device.name)
        judge = TestJudge(
            nodeid,
            ledger=self._ledger,
            arena=self._arena,
            policy=self._policy(item),
            tolerance_of=lambda metric: tolerance_of(metric, set_by_markers),
            card=self._here.device.card,
            earlier=self._judges.get(nodeid),
            progress=self._progress,
            looked=self._progress.look,
            told=lambda label, judgement: item.ihook.pytest_gpuserve_judged(
                nodeid=nodeid, label=label, judgement=judgement
            ),
        )
        self._judges[nodeid] = judge
        return judge

    def find(self, nodeid: str) -> TestJudge | None:
        """The judge of a test; None where it has none so far."""
        return self._judges.get(nodeid)

    def measurements(self) -> dict[str, list[Measurement]]:
        """The loads that tests asked for, by their ids."""
        return {nodeid: judge.measurements for nodeid, judge in self._judges.items()}

    def reported(self, nodeid: str) -> list[Measurement]:
        """The loads of which reports of a test tell."""
        judge = self._judges.get(nodeid)
        return [] if judge is None else judge.reported

    def close(self) -> None:
        """End the servers of comparisons that are still up, as after Ctrl-C; may be called again."""
        with ExitStack() as stack:
            for judge in self._judges.values():
                stack.callback(judge.close)

    def _policy(self, item: pytest.Item) -> Policy:
        settings, device = self._settings, self._here.device
        return Policy(
            record_new=settings.update is not Update.NOTHING,
            record_all=settings.update is Update.ALL,
            record_sessions=settings.record_sessions,
            reason=settings.reason,
            skip_missing=not settings.missing_fails,
            skip_foreign=device.card is None and not settings.ci and not settings.missing_asked,
            skip_inconclusive=not settings.inconclusive_fails,
            budget_seconds=settings.budget_seconds,
            foreign_cores=max(settings.foreign_cores, FOREIGN_SHARE * device.host.cores),
            confirm=settings.confirm,
            one_at_a_time=one_at_a_time(item, device.name),
            metrics=compared_metrics(item),
        )
