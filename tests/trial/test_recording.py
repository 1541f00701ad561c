"""What is recorded of a test with several loads: one that cannot be written costs no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import BaselineUnusable
from pytest_gpuserve.trial.ledger import Ledger, Place, Recorded
from tests.trial.court_world import SHAPE, THROUGHPUT, World, ask, target

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("failures", "told"),
    [
        (
            {"one": BaselineUnusable("no one", remedies=["send it"]), "three": BaselineUnusable("no three")},
            r"no one\n  help: send it\nno three\ntest_a two: recorded \(2 sessions\) in ",
        ),
        # The storage of the others is then not waited for, so that they are only kept.
        ({"one": KeyboardInterrupt("kept in x"), "two": BaselineUnusable("no two")}, "kept in x; no two"),
    ],
    ids=["two that fail", "an interrupt"],
)
def test_every_load_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: dict[str, BaseException], told: str
) -> None:
    """Each that fails is told, with what helps, and what was written is said too; an interrupt then ends the run."""
    world = World(tmp_path)
    world.stand_in(monkeypatch)
    world.next_run(record_all=True, record_sessions=2)
    judge = world.judge()
    for label in ("one", "two", "three"):
        assert ask(judge.measure(target(), SHAPE, label), THROUGHPUT)
    real, tried = Ledger.record, []

    def record(self: Ledger, place: Place, *arguments: object, **named: object) -> Recorded:
        label = place.key.split()[-1]
        tried.append(label)
        if label in failures:
            raise failures[label]
        return real(self, place, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "record", record)
    with pytest.raises(type(failures["one"]), match=told):
        judge.record()
    assert tried == ["one", "two", "three"]
