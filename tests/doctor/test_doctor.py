"""What works on this machine, and whether anything can be measured on it, as the command tells it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.doctor import __main__ as command
from pytest_gpuserve.doctor import look
from pytest_gpuserve.doctor.__main__ import main
from pytest_gpuserve.doctor.look import Driver, Finding, HostState, MachineState
from pytest_gpuserve.doctor.report import text
from pytest_gpuserve.process.container import EngineState

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("mosec")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that has no server at all."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    return str(folder / "bin" / "python")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nobody measures, with container engines as they may be; those have tests of their own."""
    states = [
        EngineState("docker", works=False, found="not reached", remedy="start its daemon"),
        EngineState("podman", works=True, found="version 4"),
    ]
    monkeypatch.setattr(look, "examine", lambda **_: states)
    seen = MachineState(host=HostState(temp=look._space("/")), driver=Driver(True, False, ""), devices=("cpu",))  # noqa: FBT003
    monkeypatch.setattr(command, "look", lambda asked, environ: seen)


def test_what_is_installed_works(capsys: pytest.CaptureFixture[str]) -> None:
    """Each server that this interpreter has is told with its version, and the exit status is 0."""
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"ok  mosec_server          mosec {version('mosec')}" in lines
    assert "ok  containers by podman  version 4" in lines
    assert "--  containers by docker  not reached" in lines


def test_what_is_missing_is_told_with_what_helps(
    bare: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For each server the command that installs it; where nothing works the status is 1, for scripts that go on."""
    monkeypatch.setattr(look, "examine", lambda **_: [])
    assert main([f"--python={bare}"]) == 1
    out = capsys.readouterr().out
    assert re.search("^--  mosec_server +mosec is not installed", out, re.MULTILINE)
    assert f"help: {bare} -m pip install 'pytest-gpuserve[mosec]'" in out
    assert "--  triton_server" in out
    assert "nvidia-pytriton" in out
    assert not [line for line in out.splitlines() if line.startswith("ok  ") and "_server" in line]
    assert out.splitlines()[-1] == "nothing can be measured: no server works"


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Each finding with its four fields, and each condition with its six."""
    assert main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    parts = {"can_measure", "why_not", "devices", "host", "driver", "cards", "conditions", "servers", "containers"}
    assert set(report) == parts
    mosec = {"what": "mosec_server", "works": True, "found": f"mosec {version('mosec')}", "remedy": ""}
    assert report["servers"][0] == mosec
    assert report["containers"][0]["remedy"] == "start its daemon"
    fields = {"what", "level", "found", "effect", "remedy", "subject"}
    assert {frozenset(each) for each in report["conditions"]} == {frozenset(fields)}
    assert {each["level"] for each in report["conditions"]} <= {"ok", "unknown", "warning", "prevents"}


def test_an_interpreter_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and the option's name, without a traceback."""
    assert main([f"--python={tmp_path / 'nothing'}"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("--python=")
    assert "there is no such file" in told


def test_findings_stand_in_columns() -> None:
    """A long finding keeps them; a container engine that says nothing of itself is a line too."""
    assert text([Finding("a", False, "one\ntwo", "do this"), Finding("bcd", True, "fine")]) == (  # noqa: FBT003
        "--  a    one\n         two\n         help: do this\nok  bcd  fine"
    )
    assert text([Finding("podman", False, "")]) == "--  podman"  # noqa: FBT003
