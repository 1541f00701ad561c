"""What works on this machine, as the command tells it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve import doctor
from pytest_gpuserve.doctor import Finding, main, text
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
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Container engines as they may be; the real ones have tests of their own."""
    states = [
        EngineState("docker", works=False, found="not reached", remedy="start its daemon"),
        EngineState("podman", works=True, found="version 4"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda **_: states)


def test_what_is_installed_works(capsys: pytest.CaptureFixture[str]) -> None:
    """Each server that this interpreter has is told with its version, and the exit status is 0."""
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"ok  mosec_server          mosec {version('mosec')}" in lines
    assert "ok  containers by podman  version 4" in lines
    assert "--  containers by docker  not reached" in lines


def test_what_is_missing_is_told_with_what_helps(bare: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An interpreter without any server gets, for each, the command that installs it."""
    main([f"--python={bare}"])
    out = capsys.readouterr().out
    assert "--  mosec_server          mosec is not installed" in out
    assert f"help: {bare} -m pip install 'pytest-gpuserve[mosec]'" in out
    assert "--  triton_server" in out
    assert "nvidia-pytriton" in out


def test_where_nothing_works_the_status_is_1(
    bare: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that goes on from here must not take it for a machine that can measure."""
    monkeypatch.setattr(doctor, "examine", lambda **_: [])
    assert main([f"--python={bare}"]) == 1
    assert "ok" not in [line[:2] for line in capsys.readouterr().out.splitlines()]


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Each finding with its four fields."""
    assert main(["--json"]) == 0
    found = {each["what"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["mosec_server"] == {
        "what": "mosec_server",
        "works": True,
        "found": f"mosec {version('mosec')}",
        "remedy": "",
    }
    assert found["containers by docker"]["remedy"] == "start its daemon"


def test_an_interpreter_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and the option's name, without a traceback."""
    assert main([f"--python={tmp_path / 'nothing'}"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("--python=")
    assert "there is no such file" in told


def test_more_lines_stand_below_the_first() -> None:
    """A long finding keeps the columns."""
    assert text([Finding("a", False, "one\ntwo", "do this"), Finding("bcd", True, "fine")]) == (  # noqa: FBT003
        "--  a    one\n         two\n         help: do this\nok  bcd  fine"
    )


def test_nothing_found_is_a_line_too() -> None:
    """A container engine that says nothing of itself is no crash."""
    assert text([Finding("podman", False, "")]) == "--  podman"  # noqa: FBT003


def test_it_runs_as_a_command() -> None:
    """``python -m pytest_gpuserve.doctor`` knows its options."""
    command = [sys.executable, "-m", "pytest_gpuserve.doctor", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "--python" in done.stdout
