"""What the record of a lock says of its holder, which every user of the machine can read."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuserve.device import DeviceLock

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "hf_abcdefghijkl"
LONGEST = 500


def told(folder: Path, command: str) -> str:
    """The command as it stands in the record of a lock that is held."""
    lock = DeviceLock("GPU-1", command=command, folder=folder)
    assert lock.try_acquire()
    try:
        return str(json.loads(lock.record_path.read_bytes())["command"])
    finally:
        lock.release()


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["pytest", "suites", "--gpu=T4"], "pytest suites --gpu=T4"),
        (["pytest", f"--api-key={SECRET}", "x"], "pytest --api-key=... x"),
        (["pytest", "--api-key", SECRET, "x"], "pytest --api-key ... x"),
        (["pytest", "-k", "a or b"], "pytest -k 'a or b'"),
    ],
)
def test_values_of_options_that_are_secrets_are_left_out(tmp_path: Path, words: list[str], shown: str) -> None:
    """By the option's name; all else stands there as it was typed."""
    assert told(tmp_path, shlex.join(words)) == shown


@pytest.mark.parametrize("secret", [SECRET, 'it\'s a "secret"', "two words of it"])
def test_secret_variables_are_called_by_their_names(
    tmp_path: Path, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever their values stand, also where a command line has to quote them."""
    monkeypatch.setenv("HF_TOKEN", secret)
    recorded = told(tmp_path, shlex.join(["pytest", "-o", f"env=T={secret}", secret]))
    assert shlex.split(recorded) == ["pytest", "-o", "env=T=<HF_TOKEN>", "<HF_TOKEN>"]


def test_a_secret_across_the_end_is_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record keeps the begin of a long command line, cut when it is without secrets."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    for before in range(LONGEST - len(SECRET) - 10, LONGEST + 1):
        recorded = told(tmp_path, shlex.join(["x" * (before - 2), SECRET]))
        assert "hf_" not in recorded
        assert len(recorded) <= LONGEST


def test_a_text_that_is_no_command_line_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for its secrets."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert told(tmp_path, "it's  what it  does") == "it's  what it  does"
    assert told(tmp_path, f"it's with {SECRET}") == "it's with <HF_TOKEN>"


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.text(st.characters(codec="utf-8", min_codepoint=32), max_size=40), max_size=8))
def test_any_words_are_told(tmp_path: Path, words: list[str]) -> None:
    """Whatever is on a command line, the device is taken, and the begin of the line is kept as it was."""
    assert told(tmp_path, shlex.join(words)) == shlex.join(words)[:LONGEST]
