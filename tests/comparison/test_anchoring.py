"""What recordings do to anchors: set, kept, tightened, loosened for a reason; each host and workload its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.builds.checkout import Revision
from pytest_gpuserve.comparison import anchoring
from pytest_gpuserve.comparison.anchoring import GatedMetric
from pytest_gpuserve.comparison.baseline_store import (
    MOST_SESSIONS_A_HOST,
    BaselineKey,
    BaselineStore,
    Recorded,
    Workload,
)
from pytest_gpuserve.gate.anchor import judge_anchor
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.store.anchor import MOST_MOVES, find
from pytest_gpuserve.store.baseline import read
from tests.comparison.vocabulary import cases
from tests.support.builders import here, session, start, window

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.experiment.environment import RunEnvironment
    from pytest_gpuserve.gate.anchor import AnchorResult
    from pytest_gpuserve.store.anchor import Anchored
    from pytest_gpuserve.store.schema import Entry

THROUGHPUT, P50 = METRICS["throughput"], METRICS["latency.p50"]
WORKLOAD = Workload({"server": "mosec", "concurrency": "50"}, {})
LATENCIES = (0.010,) * 100
NEWER = {"software": {"python": "3.12.1"}}


def commit_of(number: int) -> str:
    """The hash of a commit."""
    return f"{number:040x}"


def short(number: int) -> str:
    """As it is shown."""
    return commit_of(number)[:12]


class Project:
    """A load that is recorded again and again.

    Args:
        folder: Of its baselines.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = 0

    @property
    def place(self) -> BaselineKey:
        """Where its baseline is."""
        return BaselineStore(self.folder, here()).key_of("test_x.py::test_a", "")

    @property
    def entry(self) -> Entry:
        """Its baseline."""
        return read(self.place.path)[self.place.entry].entry

    def anchor(self, metric: str = "throughput", host: str = "host-a") -> Anchored:
        """The anchor of a metric on a host."""
        found = find(self.entry.anchors, host, metric)
        assert found is not None
        return found

    def where(self, commit: int, host: str = "host-a", *, clean: bool = True) -> RunEnvironment:
        """The circumstances of another run of pytest."""
        self.runs += 1
        code = commit_of(commit)
        return replace(
            here(host), revision=Revision(code, clean, code), occasion=f"2025-01-01T00:{self.runs:02d}:00+00:00"
        )

    def record(
        self,
        seconds: float,
        commit: int,
        *,
        host: str = "host-a",
        reason: str | None = None,
        sessions: int = 3,
        workload: Workload = WORKLOAD,
        at: RunEnvironment | None = None,
        software: dict[str, str] | None = None,
        gated: tuple[str, ...] = ("throughput",),
        spread: float = 0.001,
    ) -> Recorded:
        """Record a build that needs so many seconds for 50 requests, in a run of pytest of its own."""
        at = at or self.where(commit, host)
        baseline_store = BaselineStore(self.folder, replace(at, software=software or at.software))
        # Sessions of one build vary a little.
        made = [
            session(*[start(window(LATENCIES, seconds=2 * seconds * (1 + spread * number)))] * 2)
            for number in range(sessions)
        ]
        metrics = [GatedMetric(METRICS[name], METRICS[name].default_tolerance) for name in gated]
        return baseline_store.record(self.place, workload, made, reason, metrics)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project without baselines."""
    return Project(tmp_path / "baselines" / "cpu")


def test_a_first_recording_sets_the_anchor(project: Project) -> None:
    """It is what was measured of each metric that a test compares, with its spread, commit and moment; none moved."""
    said = project.record(0.5, 1)
    assert said == Recorded("recorded (3 sessions)", ("throughput 99.9/s, anchor set here",))
    found = project.anchor()
    assert found.line.value == pytest.approx(50 / 0.5, rel=0.002)
    assert (found.line.unit, found.line.sessions, found.line.occasions) == ("1/s", 3, 1)
    assert found.line.sd == pytest.approx(0.001, rel=0.01)
    assert (found.line.how, found.line.reason) == ("recorded", "")
    assert (found.of.commit, found.of.clean, found.of.at) == (commit_of(1), True, "2025-01-01T00:01:00+00:00")
    assert found.of.host.id == "host-a"
    assert [line.metric for line in project.entry.anchors[0].metrics] == ["throughput"]
    assert project.entry.moves == []


@cases(
    "updates, done, said",
    {
        "within": ([(0.51, 2, {})], "replaced (3", "99.9/s -> 97.9/s (-2.0 %), within tolerance"),
        "better, but not surely": ([(0.3, 2, {"spread": 0.5})], "replaced (3", "(+15.7 %), not shown to be better"),
        "worse": ([(0.6, 2, {})], "replaced (3", "(-16.7 %), worse than the tolerance"),
        "of a later build": ([(0.51, 2, {}), (0.515, 2, {})], "added to (6", "within tolerance"),
        "far from it under one commit": ([(0.6, 1, {})], "added to (6", "(-8.7 %), worse than the tolerance"),
        "and again": ([(0.6, 1, {}), (0.505, 1, {})], "added to (9", "(+2.7 %), within tolerance"),
        "with other packages": ([(0.51, 1, NEWER)], "replaced (3", "(-2.0 %), within tolerance"),
        "more of them": ([(0.51, 1, NEWER), (0.515, 1, NEWER)], "added to (6", "(-0.5 %), within tolerance"),
    },
)
def test_an_update_that_moves_nothing_says_why(
    project: Project, updates: list[tuple[float, int, dict[str, Any]]], done: str, said: str
) -> None:
    """The sessions are replaced, or added to, and the anchor stays as it was, which the words say."""
    project.record(0.5, 1)
    before = project.entry.anchors
    for seconds, commit, options in updates:
        recorded = project.record(seconds, commit, **options)
    assert recorded.done == f"{done} sessions)"
    assert recorded.changes[0].endswith(f"{said}, anchor stays at 99.9/s of {short(1)}")
    assert project.entry.anchors == before
    assert project.entry.commit == commit_of(updates[-1][1])
    assert project.entry.moves == []


def test_a_reason_loosens_nothing_that_is_not_surely_worse(project: Project) -> None:
    """One session a side says little of 5.5 %: what only seems to be beyond the tolerance leaves the anchor."""
    project.record(0.5, 1, sessions=1)
    (said,) = project.record(0.5 * 1.055, 2, sessions=1, reason="a larger model").changes
    assert "worse than the tolerance, but not surely, anchor stays at" in said
    assert project.anchor().of.commit == commit_of(1)
    assert project.entry.moves == []


@pytest.mark.parametrize("reason", [None, "always"])
def test_small_steps_do_not_move_it(project: Project, reason: str | None) -> None:
    """However many, each as good as the one before; a reason that was left in a script does not let it follow them."""
    for commit in range(8 if reason is None else 4):
        project.record(0.5 * 1.01**commit, commit, reason=reason)
    assert project.anchor().line.value == pytest.approx(99.9, rel=0.001)
    assert project.anchor().of.commit == commit_of(0)
    assert project.entry.moves == []


@cases(
    "updates, said, how",
    {
        # Clearly better needs no reason; going back is a drift from the tightened number.
        "better": ([(0.4, 2, "")], "99.9/s -> 125/s (+25.0 %), tightened", "tightened"),
        "and back": ([(0.4, 2, ""), (0.5, 3, "back")], "125/s -> 99.9/s (-20.0 %), loosened: back", "loosened"),
        "worse": ([(0.6, 2, "a larger\nmodel")], "83.3/s (-16.7 %), loosened: a larger model", "loosened"),
        "under one commit": ([(0.6, 1, "weights")], "91.2/s (-8.7 %), loosened: weights", "loosened"),
    },
)
def test_what_moves_it_is_told_and_kept(
    project: Project, updates: list[tuple[float, int, str]], said: str, how: str
) -> None:
    """The anchor is the new number, with its reason and commit; the old number stands among the moves; others stay."""
    both = ("throughput", "latency.p50")
    project.record(0.5, 1, gated=both)
    for seconds, commit, reason in updates:
        old = project.anchor()
        throughput, p50 = project.record(seconds, commit, reason=reason or None, gated=both).changes
    assert f"{said} (its anchor was {old.line.value:.3g}/s of {str(old.of.commit)[:12]})" in throughput
    assert p50.startswith("latency.p50 10.0 ms")
    assert f" of {short(1)}" in p50
    found, move = project.anchor(), project.entry.moves[-1]
    assert (found.line.how, found.line.reason, found.of.commit) == (how, reason, commit_of(commit))
    assert (move.metric, move.how, move.reason) == ("throughput", how, reason)
    assert (move.old_commit, move.commit, len(project.entry.moves)) == (old.of.commit, commit_of(commit), len(updates))
    assert move.new / move.old == pytest.approx(found.line.value / old.line.value, rel=1e-4)
    assert found.line.sessions == len(project.entry.sessions)
    assert project.anchor("latency.p50").of.commit == commit_of(1)


def test_moves_are_bounded(project: Project) -> None:
    """The last ones are kept."""
    for commit in range(MOST_MOVES + 5):
        project.record(0.5 if commit % 2 else 0.4, commit, reason=f"reason {commit}")
    moves = project.entry.moves
    assert len(moves) == MOST_MOVES
    assert moves[-1].commit == commit_of(MOST_MOVES + 4)


# -- under one commit


def test_more_sessions_of_one_build_know_its_anchor_better(project: Project) -> None:
    """Recording the same commit again adds to what the anchor rests on; its commit and moment stay.

    More new sessions than the anchor has do not hide that some of its own have gone.
    """
    project.record(0.5, 1)
    said = project.record(0.505, 1)
    assert said == Recorded("added to (6 sessions)", (f"throughput 99.4/s, the anchor of {short(1)} from 6 sessions",))
    project.record(0.5, 1)
    before = project.anchor()
    assert (before.line.sessions, before.line.occasions) == (9, 3)
    assert before.of.at == "2025-01-01T00:01:00+00:00"
    project.record(0.51, 1, sessions=5)
    assert project.anchor() == before
    assert project.entry.moves == []


def test_it_does_not_creep_under_one_commit(project: Project) -> None:
    """Where the code stays and what it runs does not, steps of 1.5 % move it until the oldest sessions go, no more."""
    for step in range(12):
        project.record(0.5 * 1.015**step, 1)
    found = project.anchor()
    assert found.line.sessions == len(project.entry.sessions) == MOST_SESSIONS_A_HOST
    assert found.line.value == pytest.approx(99.9, rel=0.025)
    assert project.entry.moves == []


def test_each_session_is_asked_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tells how much sessions vary is the anchor's spread, this run's, and that of builds since: none of it twice.

    Of three sessions each is known two degrees of freedom, and the default adds two.
    """
    asked: list[AnchorResult] = []

    def judged(*arguments: Any, **named: Any) -> AnchorResult:  # noqa: ANN401 -- those of `judge_anchor`
        asked.append(judge_anchor(*arguments, **named))
        return asked[-1]

    monkeypatch.setattr(anchoring, "judge_anchor", judged)
    for seconds, commit in ((0.5, 1), (0.501, 1), (0.502, 2), (0.503, 2)):
        project.record(seconds, commit)
    # Those of one build, one that replaces six, and one that is pooled with them.
    assert [result.evidence.df - 2 for result in asked] == [2 + 2, 5 + 2, 5 + 2 + 2]


# -- other circumstances


def test_another_host_sets_its_own(project: Project) -> None:
    """Numbers of another machine move nothing here, and going back and forth between two launders nothing."""
    project.record(0.5, 1)
    (said,) = project.record(1.0, 2, host="host-b").changes
    assert said == "throughput 50.0/s, anchor set here: the first recording on host 'host-b'"
    assert project.anchor("throughput", "host-b").line.reason == "the first recording on host 'host-b'"
    assert project.anchor().of.commit == commit_of(1)
    (back,) = project.record(0.51, 3).changes
    assert back == f"throughput 97.9/s, within tolerance, anchor stays at 99.9/s of {short(1)}"


def test_another_workload_sets_them_anew(project: Project) -> None:
    """What was measured under another load is no anchor; the list of moves keeps what it was, and why it went."""
    project.record(0.5, 1)
    project.record(0.5, 1, host="host-b")
    other = Workload({"server": "mosec", "concurrency": "80"}, {})
    (said,) = project.record(0.9, 2, workload=other).changes
    assert said == "throughput 55.5/s, anchor set here: another workload: concurrency"
    assert [each.host.id for each in project.entry.anchors] == ["host-a"]
    (move,) = project.entry.moves
    assert (move.how, move.reason, move.old_commit) == ("recorded", "another workload: concurrency", commit_of(1))


def test_the_sessions_of_an_older_file_are_its_anchor(project: Project) -> None:
    """Before there were any, the last recording was what had been accepted; unless it was of another device."""
    project.record(0.5, 1, gated=())
    assert project.entry.anchors == []
    text = project.place.path.read_text()
    (said,) = project.record(0.51, 2).changes
    assert said == f"throughput 99.9/s -> 97.9/s (-2.0 %), within tolerance, anchor stays at 99.9/s of {short(1)}"
    found = project.anchor()
    assert (found.of.commit, found.of.at) == (commit_of(1), "2025-01-01T00:01:00+00:00")
    assert found.line.value == pytest.approx(99.9, rel=0.001)
    project.place.path.write_text(text)
    at = project.where(2)
    (said,) = project.record(0.9, 2, at=replace(at, device=replace(at.device, name="other"))).changes
    assert "anchor set here: another device: name" in said


def test_what_is_gated_when(project: Project) -> None:
    """A metric that is gated later begins with the sessions before it; one that is left out once is not forgotten."""
    both = ("throughput", "latency.p50")
    project.record(0.5, 1)
    project.record(0.51, 2)
    project.record(0.51, 3, gated=both)
    assert (project.anchor().of.commit, project.anchor("latency.p50").of.commit) == (commit_of(1), commit_of(2))
    project.record(0.51, 4)
    assert project.anchor("latency.p50").of.commit == commit_of(2)


def test_code_without_a_commit_is_named_so(project: Project) -> None:
    """Outside of git, and with changes on top of a commit, the words say it."""
    project.record(0.5, 1, at=replace(project.where(1), revision=Revision(None, clean=False, code=None)))
    assert project.record(0.51, 2).changes[0].endswith("of code without a commit")
    assert project.record(0.4, 3, at=project.where(3, clean=False)).changes
    assert project.record(0.4, 4).changes[0].endswith(f"of {short(3)} with changes")


def test_what_was_not_measured_well_enough_has_none(project: Project) -> None:
    """Too few requests for a quantile set no anchor, rather than one of nothing."""
    assert len(project.record(0.5, 1, gated=("throughput", "latency.p99")).changes) == 1
    assert find(project.entry.anchors, "host-a", "latency.p99") is None
