"""A session keeps what was measured, measures disturbed starts again, and ends at trouble and at Ctrl-C."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from pytest_gpuserve.experiment import sampling
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.experiment.telemetry import NO_TELEMETRY
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.measure.window import Session, Start
from pytest_gpuserve.verdict.reason import ReasonKind
from tests.support.builders import cached
from tests.support.reasons import because

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.loaded import Progress
    from pytest_gpuserve.verdict.reason import Reason

LATE = "client late: by 3 ms"
DELAYED = because(LATE, kind=ReasonKind.CLIENT_LATE)
STOPPED = because("stopped", kind=ReasonKind.INTERRUPTED)
MOST_FOREIGN = 0.25


@dataclass
class Load:
    """Measurement of one start.

    Args:
        foreign: Cores that others took in it.
        problems: What went wrong.
        disturbances: What disturbed it as a whole.
        cached: Share of the prompts that the server knew, in each window.
    """

    foreign: float = 0.0
    problems: tuple[Reason, ...] = ()
    disturbances: tuple[Reason, ...] = ()
    cached: tuple[float, ...] = (0.0,)

    def measure(self) -> Start:
        """Measure."""
        return Start(tuple(cached(*self.cached)), 1.0, foreign_cores=self.foreign)


@dataclass
class FakeTarget:
    """A server with the measurements of its starts; None raises Ctrl-C at a start."""

    loads: list[Load | None]
    telemetry_source: object = NO_TELEMETRY
    requests: tuple[()] = field(default=())

    @contextmanager
    def started(self) -> Iterator[Load]:
        """Start."""
        load = self.loads.pop(0)
        if load is None:
            raise KeyboardInterrupt
        yield load


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the measurement of a start."""
    monkeypatch.setattr(sampling, "LoadedServer", lambda load, *_: load)
    monkeypatch.setattr(sampling, "measure_start", lambda load, _monitor: load.measure())


GOOD, WRONG = Load(), because("wrong answers", kind=ReasonKind.WRONG_ANSWERS)
DISTURBED = Load(disturbances=DELAYED)


def took(cores: float) -> str:
    """Why a start was measured again."""
    return f"others took {cores:.2f} of the host's cores"


@pytest.mark.parametrize(
    ("loads", "starts", "problems", "interrupted"),
    [
        pytest.param(
            [GOOD, None],
            [(0.0,)],
            because("interrupted by Ctrl-C after 1 starts: not decided", kind=ReasonKind.INTERRUPTED),
            True,
            id="Ctrl-C between two starts keeps the first",
        ),
        pytest.param([Load(problems=STOPPED)], [(0.0,)], STOPPED, True, id="Ctrl-C under load"),
        pytest.param([Load(problems=WRONG)], [(0.0,)], WRONG, False, id="trouble ends a session early"),
        pytest.param(
            [Load(0.1), Load(0.9), Load(0.2)], [(0.1,), (0.2, took(0.9))], (), False, id="a busy host is waited for"
        ),
        pytest.param(
            [Load(0.9), Load(0.8), Load(0.7), Load(0.6)],
            [(0.7, took(0.9), took(0.8)), (0.6,)],
            (),
            False,
            id="but not for ever: the rest stands for the verdict to refuse it",
        ),
        pytest.param(
            [DISTURBED, GOOD, DISTURBED, GOOD], [(0.0, LATE), (0.0, LATE)], (), False, id="a late client is waited for"
        ),
        pytest.param(
            [DISTURBED] * 3,
            [(0.0, LATE, LATE)],
            DELAYED,
            False,
            id="a client that is late again and again",
        ),
        pytest.param([Load(0.0, WRONG, DELAYED)], [(0.0,)], (*WRONG, *DELAYED), False, id="trouble beside it"),
    ],
)
def test_a_session_is_the_starts_that_were_not_disturbed(
    loads: list[Load | None],
    starts: list[tuple[object, ...]],
    problems: tuple[Reason, ...],
    *,
    interrupted: bool,
) -> None:
    """The repeated start reports the dropped one; no start is made in vain."""
    target, kept = FakeTarget(list(loads)), list[Session]()
    came_through = False
    try:
        shape = LoadShape(Closed(1), foreign_cores=MOST_FOREIGN)
        sampling.take_session(cast("Target", target), shape, kept.append, cast("Progress", None))
    except KeyboardInterrupt:
        came_through = True
    assert came_through is interrupted
    (session,) = kept
    assert [(start.foreign_cores, *start.rejected) for start in session.starts] == starts
    assert session.problems == problems
    assert target.loads == []


def test_a_cache_that_outlives_a_start_is_told() -> None:
    """As one that learns the prompts under load: the starts of one session are not of one work."""
    kept: list[Session] = []
    target = cast("Target", FakeTarget([Load(cached=(0.0,) * 4), Load(cached=(0.9,) * 4)]))
    sampling.take_session(target, LoadShape(Closed(1)), kept.append, cast("Progress", None))
    assert [problem.kind for problem in kept[0].problems] == [ReasonKind.UNLIKE_WORK]
