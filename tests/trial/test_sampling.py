"""A session keeps what was measured, also when Ctrl-C comes at an awkward time."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.measure.histogram import Histogram
from pytest_gpuserve.measure.window import Session, Start, Window
from pytest_gpuserve.trial import sampling
from pytest_gpuserve.trial.shape import LoadShape
from pytest_gpuserve.trial.telemeter import NOBODY

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from pytest_gpuserve.trial.handle import Target
    from pytest_gpuserve.trial.watch import Progress

WINDOW = Window(
    seconds=1.0, requests=1, errors={}, latency=Histogram({1: 1}), latency_sum_seconds=1.0, latency_max_seconds=1.0
)


class FakeTarget:
    """Its second start is interrupted, or none is."""

    telemeter = NOBODY

    def __init__(self, interrupted_start: int) -> None:
        self.requests = ()
        self.starts = 0
        self._interrupted_start = interrupted_start

    @contextmanager
    def started(self) -> Iterator[None]:
        """Start."""
        self.starts += 1
        if self.starts == self._interrupted_start:
            raise KeyboardInterrupt
        yield


class Loaded:
    """A start that was measured, with what its test wants to have gone wrong."""

    problems: tuple[str, ...] = ()
    disturbances: tuple[str, ...] = ()
    interrupted = False

    def __init__(self, *_arguments: Any) -> None:  # noqa: ANN401 -- whatever it is made of
        pass

    def measure(self) -> Start:
        """Measure."""
        return Start((WINDOW,), 1.0, counters=Counters(items=8, batches=1, batch_sizes={"8": 1}))


def taken(
    monkeypatch: pytest.MonkeyPatch, loaded: type[Loaded], target: FakeTarget, *, foreign_cores: float | None = None
) -> tuple[Session, bool]:
    """Take a session; returns it and whether Ctrl-C came through."""
    monkeypatch.setattr(sampling, "LoadedStart", loaded)
    kept: list[Session] = []
    interrupted = False
    try:
        shape = LoadShape(Closed(1), foreign_cores=foreign_cores)
        sampling.take_session(cast("Target", target), shape, kept.append, cast("Progress", None))
    except KeyboardInterrupt:
        interrupted = True
    (session,) = kept
    return session, interrupted


def test_ctrl_c_between_two_starts_keeps_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes a minute to start is where Ctrl-C usually comes."""
    session, interrupted = taken(monkeypatch, Loaded, FakeTarget(interrupted_start=2))
    assert interrupted
    assert len(session.starts) == 1
    assert session.problems == ("interrupted by Ctrl-C after 1 starts: not decided",)


def test_ctrl_c_under_load_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other start is made."""

    class Interrupted(Loaded):
        problems = ("interrupted",)
        interrupted = True

    target = FakeTarget(interrupted_start=0)
    session, interrupted = taken(monkeypatch, Interrupted, target)
    assert (interrupted, target.starts, len(session.starts), session.problems) == (True, 1, 1, ("interrupted",))


def test_trouble_ends_a_session_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured until then is kept, and its problem with it."""

    class Bad(Loaded):
        problems = ("bad",)

    target = FakeTarget(interrupted_start=0)
    session, interrupted = taken(monkeypatch, Bad, target)
    assert (interrupted, target.starts, session.problems) == (False, 1, ("bad",))


def test_a_session_has_all_its_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two, with the batches of both."""
    session, interrupted = taken(monkeypatch, Loaded, FakeTarget(interrupted_start=0))
    assert (interrupted, len(session.starts), dict(session.batch_sizes), session.problems) == (False, 2, {"8": 2}, ())


def disturbed_in(*cores: float) -> type[Loaded]:
    """Starts in which others took so many cores, one after the other."""
    left = list(cores)

    class Disturbed(Loaded):
        def measure(self) -> Start:
            return replace(super().measure(), foreign_cores=left.pop(0))

    return Disturbed


def test_a_disturbed_start_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is dropped with its batches, another takes its place, and that says what has been dropped and why."""
    target = FakeTarget(interrupted_start=0)
    session, _ = taken(monkeypatch, disturbed_in(0.1, 0.9, 0.2), target, foreign_cores=0.25)
    assert [start.foreign_cores for start in session.starts] == [0.1, 0.2]
    assert session.starts[1].rejected == ("others took 0.90 of the host's cores",)
    assert (target.starts, dict(session.batch_sizes), session.problems) == (3, {"8": 2}, ())


def test_disturbed_starts_are_not_measured_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """After two more the rest stands as it is, for the verdict to refuse it."""
    session, _ = taken(
        monkeypatch, disturbed_in(0.9, 0.8, 0.7, 0.6), FakeTarget(interrupted_start=0), foreign_cores=0.25
    )
    assert [start.foreign_cores for start in session.starts] == [0.7, 0.6]
    assert len(session.starts[0].rejected) == 2


def test_trouble_of_a_disturbed_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong answer is none of the disturbance's: the start is not dropped, and its problem ends the session."""

    class Wrong(disturbed_in(0.9)):  # type: ignore[misc] # made on the spot
        problems = ("wrong answers",)

    target = FakeTarget(interrupted_start=0)
    session, _ = taken(monkeypatch, Wrong, target, foreign_cores=0.25)
    assert (target.starts, session.problems) == (1, ("wrong answers",))


def late_in(*starts: int, problems: tuple[str, ...] = ()) -> type[Loaded]:
    """Starts of which these, from 1, were disturbed as a whole."""
    begun: list[None] = []

    class Late(Loaded):
        def measure(self) -> Start:
            begun.append(None)
            if len(begun) in starts:
                self.disturbances = ("client late: by 3 ms",)
                self.problems = problems
            return super().measure()

    return Late


def test_a_start_in_which_the_client_was_late_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as there are starts, and it is told of the one that takes its place."""
    target = FakeTarget(interrupted_start=0)
    session, _ = taken(monkeypatch, late_in(1, 3), target)
    assert (target.starts, len(session.starts), session.problems) == (4, 2, ())
    assert [start.rejected for start in session.starts] == [("client late: by 3 ms",)] * 2
    assert dict(session.batch_sizes) == {"8": 2}


def test_a_client_that_is_late_in_start_after_start_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """What persists is no disturbance: after two spare starts it is told, and no other start is made."""
    target = FakeTarget(interrupted_start=0)
    session, _ = taken(monkeypatch, late_in(1, 2, 3, 4), target)
    assert (target.starts, len(session.starts), session.problems) == (3, 1, ("client late: by 3 ms",))
    assert len(session.starts[0].rejected) == 2


def test_a_disturbed_start_with_another_problem_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong answers are none of the disturbance's, and end the session at once, with what was measured until then."""
    target = FakeTarget(interrupted_start=0)
    session, _ = taken(monkeypatch, late_in(1, problems=("wrong answers",)), target)
    assert (target.starts, len(session.starts), session.problems[0]) == (1, 1, "wrong answers")
