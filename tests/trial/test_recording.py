"""What is recorded of a test with several loads: one that cannot be written costs no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.comparison.ledger import Ledger, Place, Recorded
from pytest_gpuserve.errors import BaselineUnusable
from tests.trial.court_world import SHAPE, THROUGHPUT, World, ask, target

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.comparison.judging import TestJudge


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestJudge:
    """Of a test that has measured three loads."""
    world = World(tmp_path)
    world.stand_in(monkeypatch)
    world.next_run(record_all=True, record_sessions=2)
    judge = world.judge()
    for label in ("one", "two", "three"):
        assert ask(judge.measure(target(), SHAPE, label), THROUGHPUT)
    return judge


def failing(monkeypatch: pytest.MonkeyPatch, **failures: BaseException) -> list[str]:
    """Let the recording of some loads fail; the loads that are tried."""
    real, tried = Ledger.record, []

    def record(self: Ledger, place: Place, *arguments: object, **named: object) -> Recorded:
        label = place.key.split()[-1]
        tried.append(label)
        if label in failures:
            raise failures[label]
        return real(self, place, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "record", record)
    return tried


def test_every_load_is_tried(judge: TestJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that fails is told, with what helps, and what was written is said too."""
    tried = failing(
        monkeypatch, one=BaselineUnusable("no one", remedies=["send it"]), three=BaselineUnusable("no three")
    )
    with pytest.raises(BaselineUnusable) as problem:
        judge.record()
    assert tried == ["one", "two", "three"]
    lines = str(problem.value).splitlines()
    assert lines[:3] == ["no one", "  help: send it", "no three"]
    assert lines[3].startswith("test_a two: recorded (2 sessions) in ")


def test_an_interrupt_ends_the_run_after_the_other_loads(judge: TestJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their storage is then not waited for, so that they are only kept; what is said of each stays."""
    tried = failing(monkeypatch, one=KeyboardInterrupt("kept in x"), two=BaselineUnusable("no two"))
    with pytest.raises(KeyboardInterrupt, match="kept in x; no two"):
        judge.record()
    assert tried == ["one", "two", "three"]
