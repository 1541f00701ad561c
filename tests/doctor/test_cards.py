"""The doctor as a command on machines with scripted cards, read by the real binding from the fake of NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.children.toolkit import printed
from tests.fakes.nvml import cards
from tests.fakes.nvml.build import fake_environment
from tests.fakes.nvml.cards import Course, Error, FakeCard, Moment, Process, Script, Step, second

if TYPE_CHECKING:
    from pathlib import Path

QUICK = """
import json, os, sys
from pytest_gpuserve.doctor import __main__ as command
from pytest_gpuserve.doctor import look
from pytest_gpuserve.doctor.look import Finding
look.LOOK_SECONDS = 0.01
command.servers = lambda python: [Finding("mosec_server", True, "1")]
command.containers = lambda: []
for script in sys.argv[2:]:
    if script != "-":
        os.environ["FAKE_NVML_SCRIPT"] = script
    print(command.main(json.loads(sys.argv[1])), flush=True)
    print("\\x00")
"""
"""Runs of the command that look at no server, which other tests are about, and for a moment only."""


def told(environment: dict[str, str], *scripts: str, options: tuple[str, ...] = ("--json",)) -> list[tuple[int, str]]:
    """Exit status and text for each script; whatever is on standard error, a traceback above all, is a failure."""
    text = printed(QUICK, json.dumps(options), *(scripts or ["-"]), env=environment, seconds=110)
    runs = []
    for run in text.split("\x00\n")[:-1]:
        shown, _, status = run.rstrip().rpartition("\n")
        runs.append((int(status), shown))
    return runs


TROUBLED = replace(
    cards.T4,
    processes=(Process(os.getpid(), 600 * cards.MIB),),
    clock_reasons=cards.HW_THERMAL | cards.HW_SLOWDOWN | cards.GPU_IDLE,
    temperature=88,
    power_limit_watts=35,
    persistence=0,
    ecc_uncorrected=3,
)
OTHER = replace(second(cards.T4), processes=(Process(1, None),))
SCRIPTS = {
    "troubled": Script((TROUBLED,)),
    # It is not there at the first look, but at the second.
    "begins": Script((replace(cards.T4, clock_reasons=Course(0, (Step(cards.HW_SLOWDOWN, Moment(call=2)),))),)),
    "two": Script((cards.T4, OTHER)),
    "divided": Script((cards.DIVIDED_A100,)),
}


@pytest.fixture(scope="module")
def reports(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The JSON of each of the machines."""
    environment, paths = cards.write_each(SCRIPTS.values(), tmp_path_factory.mktemp("cards"), library=library)
    return dict(zip(SCRIPTS, (json.loads(shown) for _, shown in told(environment, *paths)), strict=True))


def levels(report: dict[str, Any], uuid: str) -> dict[str, str]:
    """By what it is about, how what is said of a card matters."""
    return {each["what"]: each["level"] for each in report["conditions"] if each["subject"] == uuid}


def condition(report: dict[str, Any], uuid: str, what: str) -> dict[str, str]:
    """What is said of one thing of a card."""
    (found,) = [each for each in report["conditions"] if (each["subject"], each["what"]) == (uuid, what)]
    return {key: str(value) for key, value in found.items()}


def test_a_troubled_card_is_told_with_what_helps(reports: dict[str, dict[str, Any]]) -> None:
    """A T4 with a stranger on it, slowed down, hot, at half its power, with errors: each is told; --gpu=cpu is left."""
    report, uuid = reports["troubled"], cards.T4.uuid
    assert "T4" not in report["devices"]
    warned = {"temperature", "throttling", "clocks", "power limit", "persistence mode", "ECC errors"}
    assert levels(report, uuid) == {"lock": "ok", "processes": "prevents", **dict.fromkeys(warned, "warning")}
    assert f"(pid {os.getpid()}) with 600 MiB" in condition(report, uuid, "processes")["found"]
    assert "HW_THERMAL_SLOWDOWN" in condition(report, uuid, "throttling")["found"]
    assert condition(report, uuid, "power limit")["remedy"] == "sudo nvidia-smi -i 0 --power-limit=70"
    (card,) = report["cards"]
    assert (card["gpu"], card["baselines"], card["facts"]["product"]) == ("T4", "baselines/T4", "Tesla T4")
    assert (card["now"]["temperature_celsius"], card["now"]["uncorrected_ecc"]) == (88, 3)


def test_what_begins_while_we_look_is_told(reports: dict[str, dict[str, Any]]) -> None:
    """A slowdown that is not there at the first look, but at the second."""
    assert levels(reports["begins"], cards.T4.uuid)["throttling"] == "warning"


def test_cards_and_instances_are_judged_apart(reports: dict[str, dict[str, Any]]) -> None:
    """What is wrong with one is said of it alone; each instance is a device by its own name."""
    report = reports["two"]
    assert levels(report, cards.T4.uuid)["processes"] in {"ok", "unknown"}
    assert levels(report, OTHER.uuid)["processes"] == "prevents"
    assert "T4" in report["devices"]
    report = reports["divided"]
    names = [card["gpu"] for card in report["cards"]]
    assert names == ["A100-SXM4-80GB-MIG-1g.10gb"] * 2 + ["A100-SXM4-80GB-MIG-3g.40gb"]
    assert set(names) <= set(report["devices"])
    assert {levels(report, each.uuid)["power limit"] for each in cards.DIVIDED_A100.slices} == {"ok"}


def test_a_hidden_card_is_no_device(library: Path, tmp_path: Path) -> None:
    """CUDA_VISIBLE_DEVICES may hide the card that somebody looks for."""
    environment = cards.write(Script((cards.T4,)), tmp_path, library=library)
    ((_, shown),) = told({**environment, "CUDA_VISIBLE_DEVICES": ""})
    report = json.loads(shown)
    assert levels(report, cards.T4.uuid)["visible"] == "warning"
    assert "T4" not in report["devices"]


def test_the_whole_command_on_this_machine() -> None:
    """With nothing replaced: JSON that can be read, a status that fits it, and nothing on standard error."""
    command = [sys.executable, "-m", "pytest_gpuserve.doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0 if report["can_measure"] else 1, "")
    assert report["host"]["cores"] == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("name", "status", "last"), [("H200", 0, "can be"), ("T4", 1, "nothing"), ("A100", 1, "nothing")]
)
def test_the_device_that_is_asked_for_decides(library: Path, tmp_path: Path, name: str, status: int, last: str) -> None:
    """One that is free, one that others use, one that is not there: for each of them `cpu` would be left."""
    environment = cards.write(Script((cards.H200, replace(OTHER, uuid=cards.T4.uuid))), tmp_path, library=library)
    ((found, shown),) = told(environment, options=(f"--gpu={name}",))
    lines = shown.splitlines()
    assert (found, lines[-1].startswith(f"{last} ")) == (status, True), shown
    assert any(line.startswith("ok        driver ") and line.endswith("answers") for line in lines)


def test_a_driver_that_does_not_start_is_no_machine_without_a_card(library: Path) -> None:
    """NVML's own words, as a problem; without a card the device is `cpu`, and the driver prevents nothing."""
    problem = "NVML said: Driver/library version mismatch"
    ((_, shown),) = told(fake_environment(library, ["Tesla T4"], init_error=18))
    report = json.loads(shown)
    assert report["driver"] == {"answers": False, "absent": False, "problem": problem}
    (found,) = [each for each in report["conditions"] if each["what"] == "driver"]
    assert (found["level"], found["found"]) == ("prevents", problem)
    ((_, shown),) = told(fake_environment(library, []))
    report = json.loads(shown)
    assert (report["cards"], report["driver"]["absent"]) == ([], True)
    assert {each["level"] for each in report["conditions"] if each["what"] == "driver"} <= {"ok"}


@pytest.mark.parametrize(
    ("card", "codes"),
    [(cards.T4, (cards.NOT_SUPPORTED, 999)), (cards.DIVIDED_A100, (cards.GPU_IS_LOST,))],
    ids=["whole", "divided"],
)
def test_each_function_may_fail(library: Path, tmp_path: Path, card: FakeCard, codes: tuple[int, ...]) -> None:
    """Whichever call fails there is no traceback, and more is unknown or refused than without: never more is well.

    The functions are those that a trace of the library shows.
    """
    trace = tmp_path / "trace"
    environment = cards.write(Script((card,)), tmp_path, library=library)
    ((_, shown),) = told({**environment, "FAKE_NVML_TRACE": str(trace)})
    whole = json.loads(shown)
    functions = list(dict.fromkeys(trace.read_text().split()))
    assert len(functions) > 25
    errors = [Error(function, code) for function in functions for code in codes]
    environment, scripts = cards.write_each((Script((card,), (error,)) for error in errors), tmp_path, library=library)
    runs = told(environment, *scripts)
    assert len(runs) == len(errors)
    for error, (_, shown) in zip(errors, runs, strict=True):
        report = json.loads(shown)
        for uuid in {each["facts"]["uuid"] for each in whole["cards"]}:
            before, now = levels(whole, uuid), levels(report, uuid)
            assert not [what for what in now if now[what] == "ok" != before[what]], error
        if len(report["cards"]) < len(whole["cards"]):
            assert report["driver"]["problem"], error
