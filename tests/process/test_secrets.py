"""Secrets of the environment are not shown."""

from __future__ import annotations

import json
import shlex
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.process.child import Command, Process
from pytest_gpuserve.process.ports import describe_process
from pytest_gpuserve.process.secrets import SHORTEST_SECRET, secret_headers, without_secret_values, without_secrets

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
        "X-Api-Key",
        "SSH_PASSPHRASE",
        "DB_PWD",
    ],
)
def test_a_secret_is_replaced_by_its_name(name: str) -> None:
    """Wherever the value stands, its variable's name stands instead."""
    assert without_secrets(f"GET /?t={SECRET} ({SECRET})", {name: SECRET}) == f"GET /?t=<{name}> (<{name}>)"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOME", "/root/some/place"),
        ("PWD", "/root/some/place"),
        ("OLDPWD", "/root/some/place"),
        ("TOKENIZER", "bert-base"),
        ("HF_TOKEN", "1"),
        ("HF_TOKEN", ""),
    ],
)
def test_what_is_no_secret_stays(name: str, value: str) -> None:
    """Other variables are not touched, nor values so short that every log has them."""
    assert without_secrets(f"a{value}b", {name: value}) == f"a{value}b"


def test_a_secret_within_another_is_no_leak() -> None:
    """The longer one goes first, so that nothing of it is left beside the shorter one's name."""
    assert without_secrets("abcdefghijkl", {"A_TOKEN": "abcdef", "B_TOKEN": "abcdefghijkl"}) == "<B_TOKEN>"


@settings(deadline=None)
@given(before=st.text(), after=st.text(), secret=st.text(min_size=SHORTEST_SECRET).filter(lambda text: "<" not in text))
def test_no_text_leaks_a_secret(before: str, after: str, secret: str) -> None:
    """Whatever is around it, the value is not in the text any more."""
    shown = without_secrets(before + secret + after, {"SOME_TOKEN": secret})
    assert secret not in shown.replace("<SOME_TOKEN>", "\0")


def test_a_key_of_many_lines_is_hidden_where_its_begin_is_cut_off() -> None:
    """The end of a log shows the end of a key, whose first lines are not there any more."""
    key = "-----BEGIN KEY-----\nabcdefghijkl\nmnopqrstuvwx\n-----END KEY-----"
    assert without_secrets("mnopqrstuvwx\n-----END KEY-----", {"PRIVATE_KEY": key}) == "<PRIVATE_KEY>\n<PRIVATE_KEY>"


@settings(deadline=None)
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
    """With an equals sign or as the next word; tokenizers, counts and words that are no options stay."""
    assert without_secret_values(words) == shown


def test_a_header_is_a_secret_by_its_name() -> None:
    """Of a bearer's header the token, which a server may repeat alone."""
    headers = {"Authorization": "Bearer abcdefgh", "X-API-Key": "12345678", "Accept": "text/plain"}
    assert secret_headers(headers) == {"Authorization": "abcdefgh", "X-API-Key": "12345678"}


def test_a_command_line_is_shown_without_secrets(tmp_path: Path) -> None:
    """In what an error says to run by hand, and in the name of a process."""
    command = Command((sys.executable, "-c", "input()", "--token=abcdefgh"), {}, tmp_path, tmp_path / "log")
    assert "abcdefgh" not in str(command)
    assert "--token=..." in str(command)
    waits = Command(
        (sys.executable, "-c", "import time; time.sleep(60)", "--token=abcdefgh"), {}, tmp_path, tmp_path / "log"
    )
    with Process.start(waits) as process:
        assert "--token=..." in describe_process(process.pid)


def test_a_secret_across_the_cut_of_a_command_line_is_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process is named by the first 400 characters of its command line, and by no part of a token."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    words = (sys.executable, "-c", "import time; time.sleep(60)")
    filling = "x" * (390 - len(f"{shlex.join(words)}  "))
    with Process.start(Command((*words, filling, SECRET), {}, tmp_path, tmp_path / "log")) as process:
        said = describe_process(process.pid)
    assert "x <HF_TOKEN>" in said


def test_the_log_of_a_server_is_shown_without_secrets(tmp_path: Path) -> None:
    """A server that prints its environment before it dies does not print its token into a report."""
    code = "import os; print('using', os.environ['HF_TOKEN'])"
    command = Command((sys.executable, "-c", code), {"HF_TOKEN": SECRET}, tmp_path, tmp_path / "log")
    with Process.start(command) as process:
        process.wait(30)
        assert process.tail() == "using <HF_TOKEN>"


def test_a_secret_across_the_cut_of_a_log_is_none_of_it(tmp_path: Path) -> None:
    """A line of a server's log is cut after 400 characters, wherever a token stands in it."""
    code = f"import os\nfor n in range({400 - len(SECRET)}, 401): print('x' * n + os.environ['HF_TOKEN'])"
    command = Command((sys.executable, "-c", code), {"HF_TOKEN": SECRET}, tmp_path, tmp_path / "log")
    with Process.start(command) as process:
        process.wait(30)
        lines = process.tail().splitlines()
    assert len(lines) == len(SECRET) + 1
    assert all("<HF_TOKEN>".startswith(line.strip("x…")) for line in lines)
