"""Logs and other texts of a server are shown without secrets of the environment, and with the error in them."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.process.child import Command, Process
from pytest_gpuserve.process.logs import SHOWN_CHARACTERS, begin_of, excerpt, read_tail
from pytest_gpuserve.process.ports import describe_process
from pytest_gpuserve.process.secrets import SHORTEST_SECRET, secret_headers, without_secret_values, without_secrets
from tests.fakes.children.toolkit import SAFETY_SECONDS

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
    """The longer secret goes first; lines of a key are masked in the end of a log without its first ones."""
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
    """A command to run by hand, and a process's name, which is cut after 400 characters, have no secrets."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("DB_PASSWORD", "it's a secret")
    words = (sys.executable, "-c", "import time; time.sleep(60)", "it's a secret", "--token=zyxwvuts")
    filling = "x" * (390 - len(f"{shlex.join(words[:-1])} --token=...  "))
    command = Command((*words, filling, SECRET), {}, tmp_path, tmp_path / "log")
    assert "zyxwvuts" not in str(command)
    assert "--token=..." in str(command)
    with Process.start(command) as process:
        said = describe_process(process.pid)
    assert "--token=..." in said
    assert "'<DB_PASSWORD>'" in said
    assert "x '<HF_TOKEN" in said


def test_a_secret_of_a_server_is_not_in_its_log(tmp_path: Path) -> None:
    """The variables of the server's own environment are known where its log is shown."""
    command = Command(("/bin/sh", "-c", "echo $HF_TOKEN"), {"HF_TOKEN": SECRET}, tmp_path, tmp_path / "log")
    with Process.start(command) as process:
        process.wait(SAFETY_SECONDS)
        assert process.tail() == "<HF_TOKEN>"


READ_BYTES = 1 << 16
COLUMNS = 400


def masked(text: str) -> str:
    """Fake of the function that knows the secret."""
    return text.replace(SECRET, "<KEY>")


def _cut(line: str) -> str:
    return line if len(line) <= COLUMNS else f"{line[: COLUMNS // 2]} … {line[-COLUMNS // 2 :]}"


ACROSS = [(f"{'x' * (COLUMNS - missing)}{SECRET}", f"{'x' * (COLUMNS - missing)}<KEY>") for missing in range(1, 15)]


@pytest.mark.parametrize(
    ("written", "start", "shown"),
    [
        # However much of it lies before the cut of a line: it is replaced before that is cut.
        *((f"first\n{line}\n", 0, f"first\n{_cut(whole)}") for line, whole in ACROSS),
        # Of a single long line only the end is read, which may begin within a secret.
        *((f"yyyy{SECRET}{'x' * (READ_BYTES - left)}", 0, _cut("x" * 2 * COLUMNS)) for left in (1, 7, len(SECRET) - 1)),
        # The exception at the end of a traceback in one line is shown.
        (
            f"first\n{'x' * 2 * COLUMNS} KeyError: 'text'\n",
            0,
            f"first\n{_cut('x' * 2 * COLUMNS + ' KeyError: ' + repr('text'))}",
        ),
        # Nothing of a short one is left out, neither from where this start began to write.
        (f"another\n{'x' * 20}{SECRET}", 8, f"{'x' * 20}<KEY>"),
    ],
)
def test_the_end_of_a_log_is_shown_without_a_secret(tmp_path: Path, written: str, start: int, shown: str) -> None:
    """The last two lines are shown, cut if long, without any part of a secret; a missing log is empty."""
    (tmp_path / "log").write_text(written)
    assert read_tail(tmp_path / "log", start=start, lines=2, shown=masked) == shown
    assert read_tail(tmp_path / "none", start=0, lines=2, shown=masked) == ""


KNOWN = {"HF_TOKEN": SECRET}

PHRASE = "correct horse battery staple " * 100
"""A secret of many words."""

TOKEN = "eyJ" + "abcdefghij" * 100


@pytest.mark.parametrize(
    ("text", "known", "most", "shown"),
    [
        ("x" * SHOWN_CHARACTERS, {}, SHOWN_CHARACTERS, "x" * SHOWN_CHARACTERS),
        ("one two three", {}, 9, "one two …"),
        ("x" * 255, {}, SHOWN_CHARACTERS, "…"),
        (f"{'x' * 260} one two", {}, 266, f"{'x' * 260} one …"),
        (f"the token is {'x' * 5000}", {}, SHOWN_CHARACTERS, "the token is …"),
        # A long token that is known is masked before anything is cut.
        (repr(f"{TOKEN} {'x ' * 200}".encode()), {"A_TOKEN": TOKEN}, 20, "b'<A_TOKEN> x x x x …"),
        # Of a huge text only the begin is looked at, which may end within a secret, behind short names of others.
        (PHRASE * 100, {"_PWD": PHRASE}, SHOWN_CHARACTERS, "…"),
    ],
    ids=[
        *("as long as it may be", "words", "one word", "long word first", "long word last"),
        *("a known secret", "end of what is looked at"),
    ],
)
def test_a_long_text_is_cut_at_a_word_and_says_so(text: str, known: dict[str, str], most: int, shown: str) -> None:
    """The word that would be cut in two is left out: it may be a token of any length that others know."""
    assert excerpt(text, known, most=most) == shown


def test_a_secret_across_the_end_is_none_of_it() -> None:
    """A known secret across the end is masked before the cut; an unknown one stays whole or is left out."""
    for before in range(SHOWN_CHARACTERS - len(SECRET) - 12, SHOWN_CHARACTERS + 1):
        shown = excerpt(f"{'x ' * (before // 2)}{SECRET} and more", KNOWN)
        assert "hf_" not in shown
        assert len(shown) <= SHOWN_CHARACTERS + 1
        shown = excerpt(f"{'x ' * (before // 2)}{SECRET}{' x' * 10}", {})
        assert SECRET in shown or "hf_" not in shown
        assert "hf_" not in without_secrets(shown, KNOWN)


@given(
    words=st.lists(st.text(max_size=30), max_size=40),
    secret=st.text(st.characters(codec="utf-8", exclude_characters="<>…"), min_size=6, max_size=40),
    place=st.integers(0, 40),
    most=st.integers(1, 400),
)
def test_no_text_leaks_a_secret(words: list[str], secret: str, place: int, most: int) -> None:
    """No cut of any text, or of its ``repr``, shows a known secret."""
    text = "".join([*words[:place], secret, *words[place:]])
    for said in (text, repr(text.encode())):
        shown = excerpt(said, {"A_TOKEN": secret}, most=most)
        assert secret not in shown.replace("<A_TOKEN>", "<>")
        assert len(shown) <= most + 1


@pytest.mark.parametrize("letter", ["x", "ä", "\N{GRINNING FACE}"])
def test_the_begin_of_a_large_answer_is_seen_to_be_no_more(letter: str) -> None:
    """However many bytes a character takes, its excerpt knows of the rest, which may cut a secret in two."""
    phrase = f"{letter} " * 400
    answer = (phrase * 1000).encode()
    assert len(begin_of(answer)) < len(answer)
    for text in (begin_of(answer).decode(errors="replace"), repr(begin_of(answer))):
        assert excerpt(text, {"_PWD": phrase}) == "…"
    assert begin_of(b"right") == begin_of(bytearray(b"right")) == b"right"


def test_the_error_is_in_the_tail_although_the_server_logged_more(tmp_path: Path) -> None:
    """Lines of tracebacks and of Triton's errors come before the last lines, with a mark for each gap."""
    failed = [
        "I1122 10:00:00.1 1 server.cc:100] Started",
        "Traceback (most recent call last):",
        '  File "app.py", line 7, in <module>',
        "    load()",
        "weights.Missing: no such model",
        *(f"I1122 {number}" for number in range(9)),
        "E1122 10:00:01.1 1 model.cc:9] failed to load 'echo'",
        *(f"I1122 after {number}" for number in range(12)),
    ]
    log = tmp_path / "log"
    log.write_text("\n".join(failed))
    last = failed[-10:]
    assert read_tail(log, start=0, lines=10).splitlines() == [*failed[1:5], "...", failed[14], "...", *last]
    # The last of many errors, as many as half of the lines; a single line stays one.
    assert read_tail(log, start=0, lines=4).splitlines() == [failed[4], "...", failed[14], "...", *failed[-4:]]
    assert read_tail(log, start=0, lines=1) == failed[-1]
    log.write_text("\n".join(last))
    assert read_tail(log, start=0, lines=4).splitlines() == last[-4:]
