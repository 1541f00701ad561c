"""Secrets of the environment are not shown."""

from __future__ import annotations

import json
import shlex
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.process.child import Command, Process
from pytest_gpuserve.process.ports import describe_process
from pytest_gpuserve.process.secrets import SHORTEST_SECRET, secret_headers, without_secret_values, without_secrets
from tests.fakes.children.toolkit import SAFETY_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "hf_abcdefghijkl"


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "GOOGLE_CREDENTIALS", "MY_APIKEY", "api_token", "X-Api-Key"],
)
def test_a_secret_is_replaced_by_its_name(name: str) -> None:
    """Wherever the value stands, its variable's name stands instead."""
    assert without_secrets(f"GET /?t={SECRET} ({SECRET})", {name: SECRET}) == f"GET /?t=<{name}> (<{name}>)"


@pytest.mark.parametrize(
    ("name", "value"),
    [("PWD", "/root/some/place"), ("OLDPWD", "/root/some/place"), ("TOKENIZER", "bert-base"), ("HF_TOKEN", "1")],
)
def test_what_is_no_secret_stays(name: str, value: str) -> None:
    """Other variables are not touched, nor values so short that every log has them."""
    assert without_secrets(f"a{value}b", {name: value}) == f"a{value}b"


def test_a_secret_beside_another_or_cut_off_is_no_leak() -> None:
    """The longer one goes first; the end of a log shows the end of a key of many lines, without its first ones."""
    assert without_secrets("abcdefghijkl", {"A_TOKEN": "abcdef", "B_TOKEN": "abcdefghijkl"}) == "<B_TOKEN>"
    key = "-----BEGIN KEY-----\nabcdefghijkl\nmnopqrstuvwx\n-----END KEY-----"
    assert without_secrets("mnopqrstuvwx\n-----END KEY-----", {"PRIVATE_KEY": key}) == "<PRIVATE_KEY>\n<PRIVATE_KEY>"


@given(secret=st.text(st.characters(exclude_characters="<", codec="utf-8"), min_size=SHORTEST_SECRET))
def test_no_repr_leaks_a_secret(secret: str) -> None:
    """An answer is shown as the ``repr`` of its bytes, a result as JSON: both may write a value in another way."""
    for written in (repr(secret.encode()), repr(secret), json.dumps(secret)):
        assert without_secrets(written, {"SOME_TOKEN": secret})[-13:-1] == "<SOME_TOKEN>"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-key=sk-abcdef", "x"], ["--api-key=...", "x"]),
        (["--api-key", "sk-abcdef", "x"], ["--api-key", "...", "x"]),
        (["--auth-token", "--verbose", "sk-abcdef"], ["--auth-token", "--verbose", "sk-abcdef"]),
        (["--tokenizer=bert-base", "--max-tokens=100000"], ["--tokenizer=bert-base", "--max-tokens=100000"]),
        (["token=abcdefgh"], ["token=abcdefgh"]),
    ],
)
def test_options_named_like_secrets_hide_their_values(words: list[str], shown: list[str]) -> None:
    """Values after an equals sign or as the next word are hidden; tokenizers, counts and other words stay."""
    assert without_secret_values(words) == shown


def test_a_header_is_a_secret_by_its_name() -> None:
    """A bearer's header gives the token, which a server may repeat alone."""
    headers = {"Authorization": "Bearer abcdefgh", "X-API-Key": "12345678", "Accept": "text/plain"}
    assert secret_headers(headers) == {"Authorization": "abcdefgh", "X-API-Key": "12345678"}


def test_a_command_line_is_shown_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In what an error says to run by hand, and in the name of a process, which is cut after 400 characters."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    words = (sys.executable, "-c", "import time; time.sleep(60)", "--token=zyxwvuts")
    filling = "x" * (390 - len(f"{shlex.join(words[:-1])} --token=...  "))
    command = Command((*words, filling, SECRET), {}, tmp_path, tmp_path / "log")
    assert "zyxwvuts" not in str(command)
    assert "--token=..." in str(command)
    with Process.start(command) as process:
        said = describe_process(process.pid)
    assert "--token=..." in said
    assert "x <HF_TOKEN>" in said


def test_a_secret_of_a_server_is_not_in_its_log(tmp_path: Path) -> None:
    """The variables of the server's own environment are known where its log is shown."""
    command = Command(("/bin/sh", "-c", "echo $HF_TOKEN"), {"HF_TOKEN": SECRET}, tmp_path, tmp_path / "log")
    with Process.start(command) as process:
        process.wait(SAFETY_SECONDS)
        assert process.tail() == "<HF_TOKEN>"
