"""Commands that people run: what they say of an error, and how they end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpuserve.doctor.__main__ import main as doctor
from pytest_gpuserve.errors import LoadFailed, UsageProblem
from pytest_gpuserve.process.command_line import INTERRUPTED, failed, refused, run_command

SECRET = "hf_abcdefghijkl"

PRINTING = """
import sys
from pytest_gpuserve.process.command_line import run_command
def command(arguments):
    print("88 °C " * int(arguments[0]))
    return 3
sys.exit(run_command(command))
"""


def test_an_error_is_told_without_secrets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard error alone has the error; the exit status tells a wrong argument from a failure."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert refused(UsageProblem(f"no such file: {SECRET}", remedies=["name another"])) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "no such file: <HF_TOKEN>" in told.err
    assert "name another" in told.err
    assert failed(LoadFailed("no load", found=SECRET)) == 1
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "no load\n  found: <HF_TOKEN>\n")
    assert doctor([f"--python=/no/{SECRET}/python"]) == 2
    shown = capsys.readouterr().err
    assert SECRET not in shown
    assert "<HF_TOKEN>" in shown


def test_ctrl_c_is_no_traceback() -> None:
    """Ctrl-C ends a command with exit status 130, as shells count it."""

    def interrupted(arguments: object) -> int:
        raise KeyboardInterrupt

    assert run_command(interrupted) == INTERRUPTED == 130


@pytest.mark.parametrize("times", ["1", "100000"])
def test_a_reader_that_leaves_early_is_no_traceback(times: str) -> None:
    """A closed pipe is not a traceback, whether output waits for the end or fills the pipe at once."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        words = [sys.executable, "-c", PRINTING, times]
        done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("times", ["1", "100000"])
def test_a_full_disk_is_told_in_one_line(times: str) -> None:
    """The error is that of the system, without a traceback."""
    with Path("/dev/full").open("wb") as full:
        words = [sys.executable, "-c", PRINTING, times]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "[Errno 28] No space left on device\n")


def test_a_closed_output_is_no_traceback() -> None:
    """A command whose shell closed its output, as by ``>&-``, keeps its exit status."""
    words = ["sh", "-c", '"$0" -c "$1" 1 >&-', sys.executable, PRINTING]
    done = subprocess.run(words, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (3, b"")


def test_a_sign_that_a_terminal_does_not_know_is_no_traceback() -> None:
    """Characters that the encoding lacks are replaced."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-c", PRINTING, "1"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "88 ?C \n", "")
