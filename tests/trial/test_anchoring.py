"""What recordings do to anchors: set, kept, tightened, loosened for a reason; each host and workload its own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.comparison import anchoring
from pytest_gpuserve.comparison.anchoring import Gated
from pytest_gpuserve.comparison.ledger import MOST_SESSIONS_A_HOST, Ledger, Place, Recorded, Workload
from pytest_gpuserve.experiment.provenance import Revision
from pytest_gpuserve.gate.anchor import judge_anchor
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.store.anchor import MOST_MOVES, find
from pytest_gpuserve.store.baseline import read
from tests.support.builders import here, session, start, window

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.experiment.provenance import Here
    from pytest_gpuserve.gate.anchor import AnchorResult
    from pytest_gpuserve.store.anchor import Anchored
    from pytest_gpuserve.store.schema import Entry

THROUGHPUT, P50 = METRICS["throughput"], METRICS["latency.p50"]
WORKLOAD = Workload({"server": "mosec", "concurrency": "50"}, {})
LATENCIES = (0.010,) * 100


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
    def place(self) -> Place:
        """Where its baseline is."""
        return Ledger(self.folder, here()).place("test_x.py::test_a", "")

    @property
    def entry(self) -> Entry:
        """Its baseline."""
        return read(self.place.path)[self.place.key].entry

    def anchor(self, metric: str = "throughput", host: str = "host-a") -> Anchored:
        """The anchor of a metric on a host."""
        found = find(self.entry.anchors, host, metric)
        assert found is not None
        return found

    def where(self, commit: int, host: str = "host-a", *, clean: bool = True) -> Here:
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
        at: Here | None = None,
        gated: tuple[str, ...] = ("throughput",),
        spread: float = 0.001,
    ) -> Recorded:
        """Record a build that needs so many seconds for 50 requests, in a run of pytest of its own."""
        ledger = Ledger(self.folder, at or self.where(commit, host))
        # Sessions of one build vary a little.
        made = [
            session(*[start(window(LATENCIES, seconds=2 * seconds * (1 + spread * number)))] * 2)
            for number in range(sessions)
        ]
        metrics = [Gated(METRICS[name], METRICS[name].default_tolerance) for name in gated]
        return ledger.record(self.place, workload, made, reason, metrics)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project without baselines."""
    return Project(tmp_path / "baselines" / "cpu")


def test_a_first_recording_sets_the_anchor(project: Project) -> None:
    """It is what was measured, with its spread, its commit and its moment; nothing was moved."""
    said = project.record(0.5, 1)
    assert said == Recorded("recorded (3 sessions)", ("throughput 99.9/s, anchor set here",))
    found = project.anchor()
    assert found.line.value == pytest.approx(50 / 0.5, rel=0.002)
    assert (found.line.unit, found.line.sessions, found.line.occasions) == ("1/s", 3, 1)
    assert found.line.sd == pytest.approx(0.001, rel=0.01)
    assert (found.line.how, found.line.reason) == ("recorded", "")
    assert (found.of.commit, found.of.clean, found.of.at) == (commit_of(1), True, "2025-01-01T00:01:00+00:00")
    assert found.of.host.id == "host-a"
    assert project.entry.moves == []


def test_only_what_is_gated_has_an_anchor(project: Project) -> None:
    """Nobody has reviewed the number of a metric that no test compares."""
    project.record(0.5, 1, gated=("throughput", "latency.p50"))
    assert [line.metric for line in project.entry.anchors[0].metrics] == ["latency.p50", "throughput"]


def test_within_the_tolerance_it_stays(project: Project) -> None:
    """A later commit replaces the sessions and leaves the anchor, which the words say."""
    project.record(0.5, 1)
    before = project.entry.anchors
    said = project.record(0.51, 2)
    assert said.done == "replaced (3 sessions)"
    assert said.changes == (
        f"throughput 99.9/s -> 97.9/s (-2.0 %), within tolerance, anchor stays at 99.9/s of {short(1)}",
    )
    assert project.entry.anchors == before
    assert project.entry.commit == commit_of(2)


def test_what_is_better_but_not_surely_is_not_within_the_tolerance(project: Project) -> None:
    """Sessions that lie far apart show nothing: that is said, and the anchor stays."""
    project.record(0.5, 1)
    (said,) = project.record(0.3, 2, spread=0.5).changes
    assert said == (
        f"throughput 99.9/s -> 116/s (+15.7 %), not shown to be better, anchor stays at 99.9/s of {short(1)}"
    )


def test_small_steps_do_not_move_it(project: Project) -> None:
    """After many updates, each of them as good as the one before, the anchor is what it was."""
    project.record(0.5, 0)
    for commit in range(1, 8):
        project.record(0.5 * 1.01**commit, commit)
    assert project.anchor().line.value == pytest.approx(99.9, rel=0.001)
    assert project.entry.moves == []


def test_what_is_clearly_better_tightens_it(project: Project) -> None:
    """No reason is needed, and the old number stands among the moves."""
    project.record(0.5, 1)
    (said,) = project.record(0.4, 2).changes
    assert said == f"throughput 99.9/s -> 125/s (+25.0 %), tightened (its anchor was 99.9/s of {short(1)})"
    found = project.anchor()
    assert (found.line.how, found.of.commit) == ("tightened", commit_of(2))
    (move,) = project.entry.moves
    assert (move.metric, move.how, move.old_commit, move.commit) == (
        "throughput",
        "tightened",
        commit_of(1),
        commit_of(2),
    )
    assert move.new / move.old == pytest.approx(1.25, rel=1e-4)
    # Going back is a drift from the tightened number, and needs a reason.
    assert "-20.0 %" in project.record(0.5, 3, reason="back").changes[0]
    assert project.anchor().line.how == "loosened"


def test_a_reason_loosens_what_is_beyond_the_tolerance(project: Project) -> None:
    """The anchor is the new number, with the reason in its line, in the moves and in the words; others stay."""
    project.record(0.5, 1, gated=("throughput", "latency.p50"))
    said = project.record(0.6, 2, reason="a larger\nmodel", gated=("throughput", "latency.p50"))
    assert said.changes == (
        f"throughput 99.9/s -> 83.3/s (-16.7 %), loosened: a larger model (its anchor was 99.9/s of {short(1)})",
        f"latency.p50 10.0 ms -> 10.0 ms (+0.0 %), within tolerance, anchor stays at 10.0 ms of {short(1)}",
    )
    found = project.anchor()
    assert (found.line.how, found.line.reason, found.of.commit) == ("loosened", "a larger\nmodel", commit_of(2))
    assert project.anchor("latency.p50").of.commit == commit_of(1)
    assert [(move.metric, move.reason) for move in project.entry.moves] == [("throughput", "a larger\nmodel")]


def test_a_reason_loosens_nothing_that_needs_none(project: Project) -> None:
    """An option that was left in a script does not let the anchor follow small steps."""
    project.record(0.5, 1)
    for commit in range(2, 5):
        project.record(0.5 * 1.012 ** (commit - 1), commit, reason="always")
    assert project.anchor().of.commit == commit_of(1)


def test_a_reason_loosens_nothing_that_is_not_surely_worse(project: Project) -> None:
    """One session a side says little of 5.5 %: what only seems to be beyond the tolerance leaves the anchor."""
    project.record(0.5, 1, sessions=1)
    (said,) = project.record(0.5 * 1.055, 2, sessions=1, reason="a larger model").changes
    assert "worse than the tolerance, but not surely, anchor stays at" in said
    assert project.anchor().of.commit == commit_of(1)
    assert project.entry.moves == []


def test_what_is_surely_worse_is_not_said_to_be_unsure(project: Project) -> None:
    """Whoever writes it without a reason all the same is told what it is."""
    project.record(0.5, 1)
    (said,) = project.record(0.6, 2).changes
    assert "worse than the tolerance, anchor stays at" in said


def test_moves_are_bounded(project: Project) -> None:
    """The last ones are kept."""
    for commit in range(MOST_MOVES + 5):
        project.record(0.5 if commit % 2 else 0.4, commit, reason=f"reason {commit}")
    moves = project.entry.moves
    assert len(moves) == MOST_MOVES
    assert moves[-1].commit == commit_of(MOST_MOVES + 4)


def test_more_sessions_of_one_build_know_its_anchor_better(project: Project) -> None:
    """Recording the same commit again adds to what the anchor rests on; its commit and moment stay."""
    project.record(0.5, 1)
    said = project.record(0.505, 1)
    assert said == Recorded("added to (6 sessions)", (f"throughput 99.4/s, the anchor of {short(1)} from 6 sessions",))
    found = project.anchor()
    assert (found.line.sessions, found.line.occasions) == (6, 2)
    assert found.of.at == "2025-01-01T00:01:00+00:00"
    assert project.entry.moves == []


def test_it_does_not_creep_under_one_commit(project: Project) -> None:
    """Where the code stays and what it runs does not, steps of 1.5 % move it until the oldest sessions go, no more."""
    for step in range(12):
        project.record(0.5 * 1.015**step, 1)
    found = project.anchor()
    assert found.line.sessions == len(project.entry.sessions) == MOST_SESSIONS_A_HOST
    assert found.line.value == pytest.approx(99.9, rel=0.025)
    assert project.entry.moves == []


def test_what_is_far_from_it_is_no_more_of_it(project: Project) -> None:
    """Sessions of the anchor's own build that are worse than the tolerance do not become part of it, then or later."""
    project.record(0.5, 1)
    before = project.anchor()
    assert "worse than the tolerance, anchor stays at" in project.record(0.6, 1).changes[0]
    assert "anchor stays at" in project.record(0.505, 1).changes[0]
    assert project.anchor() == before


def test_sessions_are_counted_as_they_are_dropped(project: Project) -> None:
    """More new sessions than the anchor has do not hide that some of its own have gone."""
    for sessions in (3, 3, 3):
        project.record(0.5, 1, sessions=sessions)
    before = project.anchor()
    assert before.line.sessions == 9
    project.record(0.51, 1, sessions=5)
    assert project.anchor() == before


def test_a_reason_loosens_it_under_one_commit(project: Project) -> None:
    """Without a change of the code too the reason is kept, and the move is told."""
    project.record(0.5, 1)
    (said,) = project.record(0.6, 1, reason="larger weights").changes
    assert "(-8.7 %), loosened: larger weights (its anchor was 99.9/s" in said
    found = project.anchor()
    assert (found.line.how, found.line.reason, found.line.sessions) == ("loosened", "larger weights", 6)
    (move,) = project.entry.moves
    assert (move.how, move.reason, move.commit, move.old_commit) == (
        "loosened",
        "larger weights",
        commit_of(1),
        commit_of(1),
    )


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
    added, replaced, pooled = (result.evidence.df - 2 for result in asked)
    assert added == 2 + 2
    assert replaced == 5 + 2
    assert pooled == 5 + 2 + 2


def test_more_sessions_of_a_later_build_leave_it(project: Project) -> None:
    """The anchor of an earlier commit does not follow what is added to a later one."""
    project.record(0.5, 1)
    before = project.anchor()
    project.record(0.51, 2)
    assert "within tolerance" in project.record(0.515, 2).changes[0]
    assert project.anchor() == before
    assert len(project.entry.sessions) == 6


def test_new_packages_do_not_move_it(project: Project) -> None:
    """The same commit with other packages is another build: its sessions replace, its anchor stays."""
    project.record(0.5, 1)
    at = replace(project.where(1), software={"python": "3.12.1"})
    assert project.record(0.51, 1, at=at).done == "replaced (3 sessions)"
    again = replace(project.where(1), software={"python": "3.12.1"})
    assert project.record(0.515, 1, at=again).done == "added to (6 sessions)"
    assert project.anchor().of.software == {"python": "3.11.9"}
    assert project.anchor().line.sessions == 3


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
    assert (move.how, move.reason, move.old_commit) == (
        "recorded",
        "another workload: concurrency",
        commit_of(1),
    )


def test_another_device_sets_it_anew(project: Project) -> None:
    """What an unlike card of the same host gave is no anchor of this one, which is said."""
    project.record(0.5, 1)
    file = project.place.path
    plain = json.loads(file.read_text())
    plain["entries"]["test_a"]["anchors"] = []
    file.write_text(json.dumps(plain))
    # Without an anchor the sessions stand for it, and they are of another device now.
    at = project.where(2)
    device = replace(at.device, name="other")
    (said,) = project.record(0.9, 2, at=replace(at, device=device)).changes
    assert "anchor set here: another device: name" in said


def test_the_sessions_of_an_older_file_are_its_anchor(project: Project) -> None:
    """Before there were any, the last recording was what had been accepted: so it is from the next update on."""
    project.record(0.5, 1, gated=())
    assert project.entry.anchors == []
    (said,) = project.record(0.51, 2).changes
    assert said == f"throughput 99.9/s -> 97.9/s (-2.0 %), within tolerance, anchor stays at 99.9/s of {short(1)}"
    found = project.anchor()
    assert (found.of.commit, found.of.at) == (commit_of(1), "2025-01-01T00:01:00+00:00")
    assert found.line.value == pytest.approx(99.9, rel=0.001)


def test_a_metric_that_is_gated_later_begins_there(project: Project) -> None:
    """Its anchor is what the sessions before it say, not what it was when nobody had asked."""
    project.record(0.5, 1)
    project.record(0.51, 2)
    project.record(0.51, 3, gated=("throughput", "latency.p50"))
    assert (project.anchor().of.commit, project.anchor("latency.p50").of.commit) == (commit_of(1), commit_of(2))


def test_what_is_not_gated_any_more_stays(project: Project) -> None:
    """Leaving an assertion out for one update must not forget what the metric was."""
    project.record(0.5, 1, gated=("throughput", "latency.p50"))
    project.record(0.5, 2)
    assert project.anchor("latency.p50").of.commit == commit_of(1)


def test_code_without_a_commit_is_named_so(project: Project) -> None:
    """Outside of git, and with changes on top of a commit, the words say it."""
    project.record(0.5, 1, at=replace(project.where(1), revision=Revision(None, clean=False, code=None)))
    assert project.record(0.51, 2).changes[0].endswith("of code without a commit")
    assert project.record(0.4, 3, at=project.where(3, clean=False)).changes
    assert project.record(0.4, 4).changes[0].endswith(f"of {short(3)} with changes")


def test_what_was_not_measured_well_enough_has_none(project: Project) -> None:
    """Too few requests for a quantile set no anchor, rather than one of nothing."""
    said = project.record(0.5, 1, gated=("throughput", "latency.p99"))
    assert len(said.changes) == 1
    assert find(project.entry.anchors, "host-a", "latency.p99") is None
