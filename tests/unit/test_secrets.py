"""Secrets of the environment are not shown."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.process.child import Command, Process
from pytest_gpuserve.process.secrets import SHORTEST_SECRET, without_secrets

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "hf_abcdefghijkl"


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "OPENAI_API_KEY",
        "GOOGLE_CREDENTIALS",
        "MY_APIKEY",
        "api_token",
    ],
)
def test_a_secret_is_replaced_by_its_name(name: str) -> None:
    """Wherever the value stands, its variable's name stands instead."""
    assert without_secrets(f"GET /?t={SECRET} ({SECRET})", {name: SECRET}) == f"GET /?t=<{name}> (<{name}>)"


@pytest.mark.parametrize(("name", "value"), [("HOME", "/root/some/place"), ("HF_TOKEN", "1"), ("HF_TOKEN", "")])
def test_what_is_no_secret_stays(name: str, value: str) -> None:
    """Other variables are not touched, nor values so short that every log has them."""
    assert without_secrets(f"a{value}b", {name: value}) == f"a{value}b"


def test_a_secret_within_another_is_no_leak() -> None:
    """The longer one goes first, so that nothing of it is left beside the shorter one's name."""
    assert without_secrets("abcdefghijkl", {"A_TOKEN": "abcdef", "B_TOKEN": "abcdefghijkl"}) == "<B_TOKEN>"


@given(before=st.text(), after=st.text(), secret=st.text(min_size=SHORTEST_SECRET).filter(lambda text: "<" not in text))
def test_no_text_leaks_a_secret(before: str, after: str, secret: str) -> None:
    """Whatever is around it, the value is not in the text any more."""
    shown = without_secrets(before + secret + after, {"SOME_TOKEN": secret})
    assert secret not in shown.replace("<SOME_TOKEN>", "\0")


def test_the_log_of_a_server_is_shown_without_secrets(tmp_path: Path) -> None:
    """A server that prints its environment before it dies does not print its token into a report."""
    code = "import os; print('using', os.environ['HF_TOKEN'])"
    command = Command((sys.executable, "-c", code), {"HF_TOKEN": SECRET}, tmp_path, tmp_path / "log")
    with Process.start(command) as process:
        process.wait(30)
        assert process.tail() == "using <HF_TOKEN>"
