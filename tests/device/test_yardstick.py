"""The yardstick by real processes: it sees what slows a machine, and what cannot be measured is told."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psutil
import pytest

from pytest_gpuserve.device import yardstick, yardstick_card
from pytest_gpuserve.device.yardstick import YardstickFailed, measure_card, measure_cores
from tests.fakes.children.toolkit import busy

if TYPE_CHECKING:
    from pathlib import Path

KINDS = {"interpreter", "arithmetic", "memory"}


def test_all_cores_are_measured_at_once() -> None:
    """Each kind of work has a rate, and no process of it is left."""
    before = set(psutil.Process().children(recursive=True))
    rates = measure_cores(2)
    assert rates.keys() == KINDS
    assert all(rate > 0 for rate in rates.values())
    assert set(psutil.Process().children(recursive=True)) <= before


BURNERS = 8
TURNS = 2


def test_a_machine_with_less_time_is_slower() -> None:
    """Beside eight burners on its one core the work is done less often: a ninth as often, or half beside eight others.

    Held on one core, so that no other one takes the burners.
    """
    cores = os.sched_getaffinity(0)
    with ExitStack() as held:
        held.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, {min(cores)})
        alone, beside = [], []
        # By turns: others who take the core for a while slow either.
        for _ in range(TURNS):
            alone.append(measure_cores(1)["interpreter"])
            with ExitStack() as burners:
                for _ in range(BURNERS):
                    burners.enter_context(busy())
                beside.append(measure_cores(1)["interpreter"])
    assert min(beside) < 0.6 * max(alone)


def test_a_card_is_measured_by_the_torch_that_its_server_has() -> None:
    """By real torch, on the CPU in the place of a card."""
    pytest.importorskip("torch")
    rates = measure_card(sys.executable, {}, torch_device="cpu")
    assert rates.keys() == {"matrix multiply", "card memory"}
    assert all(rate > 0 for rate in rates.values())


def fake_python(folder: Path, script: str) -> str:
    """A shell script in the place of an interpreter."""
    fake = folder / "python"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    return str(fake)


def test_an_interpreter_without_torch_measures_no_card(tmp_path: Path) -> None:
    """Its exit status says so, and there is no rate; the facts of the card must match anyway."""
    assert measure_card(fake_python(tmp_path, f"exit {yardstick_card.NO_TORCH_EXIT}"), {}) == {}
    assert yardstick.NO_TORCH_EXIT == yardstick_card.NO_TORCH_EXIT


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo '{}'", "exit status 0"),
        ("echo '{\"memory\": 0}'", "exit status 0"),
        ("echo '{\"memory\": NaN}'", "exit status 0"),
        ("echo hello", "hello"),
        ("echo oops >&2; exit 2", "exit status 2"),
    ],
)
def test_what_cannot_be_measured_is_told(tmp_path: Path, script: str, found: str) -> None:
    """Neither an answer without numbers nor one with impossible ones is taken for a speed."""
    with pytest.raises(YardstickFailed) as caught:
        measure_card(fake_python(tmp_path, script), {})
    assert found in str(caught.value)


def test_one_that_hangs_or_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended after its deadline, and nothing of it is left."""
    monkeypatch.setattr(yardstick, "CARD_SECONDS", 0.2)
    with pytest.raises(YardstickFailed, match="could not be measured"):
        measure_card(fake_python(tmp_path, "exec sleep 60"), {})
    with pytest.raises(YardstickFailed, match="No such file"):
        measure_card("/nowhere/python", {})
