"""Files of the history that are not right: never evidence, never a crash, and always told in one line."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuserve.store import checksummed
from pytest_gpuserve.store.checksummed import HistoryUnusable, with_checksum
from pytest_gpuserve.store.history import History
from pytest_gpuserve.store.sequence import PAST_SCHEMA, ROUNDS_SCHEMA
from tests.store.history_builders import SUBJECT, TODAY, pair, small_sequence
from tests.store.test_damage import NO_FILES_OF_OURS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCHEMAS = {"rounds": ROUNDS_SCHEMA, "past": PAST_SCHEMA}
DAMAGE = settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def history(tmp_path: Path) -> History:
    """A history that remembers one pair."""
    made = History(tmp_path / "gpuserve", now=lambda: TODAY)
    made.save(pair(), small_sequence(rounds=2))
    return made


def the_file(history: History, kind: str) -> Path:
    """The only file of a kind."""
    (path,) = history.folder.glob(f"*.{kind}.json")
    return path


def refusal(history: History) -> str:
    """The line in which the rounds are refused; it names the file and what helps."""
    with pytest.raises(HistoryUnusable) as caught:
        history.load(pair())
    line = caught.value.line
    assert str(the_file(history, "rounds")) in line
    assert caught.value.remedies
    assert "\n" not in line
    return line


def content(path: Path) -> Any:  # noqa: ANN401 -- plain JSON
    """What is in a file, as plain data."""
    return json.loads(path.read_bytes())["content"]


def put_content(path: Path, plain: object) -> None:
    """Write a content with a checksum that fits."""
    path.write_bytes(
        with_checksum(json.dumps(plain, separators=(",", ":")).encode(), schema=SCHEMAS[path.name.split(".")[1]])
    )


def test_every_changed_byte_is_noticed(history: History) -> None:
    """Each byte of both files, one after the other, changed: nothing of the file is used."""
    path = the_file(history, "past")
    data = path.read_bytes()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        past = history.past_rounds(SUBJECT)
        assert past.comparisons == ()
        assert len(past.notes) == 1
        assert str(path) in past.notes[0]


@DAMAGE
@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(1, 255))
def test_rounds_that_are_changed_or_cut_anywhere_are_refused(history: History, place: float, byte: int) -> None:
    """Whatever byte becomes whatever other one, and however little is missing at the end."""
    path = the_file(history, "rounds")
    data = path.read_bytes()
    position = int(place * len(data))
    changed = bytearray(data)
    changed[position] ^= byte
    try:
        for damaged in (changed, data[:position]):
            path.write_bytes(damaged)
            refusal(history)
    finally:
        path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        *NO_FILES_OF_OURS,
        b'{"schema":0,"sha256":"","content":' + NO_FILES_OF_OURS[-1],
        b'{"schema":"1"}',
        b'{"schema":true}',
        b'{"schema":0,"sha256":3,"content":{}}',
        b'{"schema":0,"sha256":"\\ud800","content":{}}',
        b'{"schema":0,"sha256":"","content":{}}',
        b'{"schema":0,"sha256":"","content":{},"more":1}',
        *[with_checksum(content, schema=0) for content in (b"{}", b"3", b"[" * 500_000, b"")],
    ],
    ids=range(22),
)
def test_what_is_no_history_at_all_is_refused(history: History, damage: bytes) -> None:
    """Any other content is refused in words, in both files, and the next save heals them."""
    for kind, schema in SCHEMAS.items():
        the_file(history, kind).write_bytes(damage.replace(b'{"schema":0,', b'{"schema":%d,' % schema))
    refusal(history)
    assert len(history.past_rounds(SUBJECT).notes) == 1
    history.save(pair(), small_sequence())
    assert history.load(pair()) is not None
    assert history.past_rounds(SUBJECT).notes == ()


@pytest.mark.parametrize(("schema", "words"), [(ROUNDS_SCHEMA + 1, "pip install --upgrade"), (1, "older")])
def test_another_schema_says_what_to_do(history: History, schema: int, words: str) -> None:
    """A newer file asks for a newer version, an older one to be removed, whatever else is in it."""
    the_file(history, "rounds").write_text(json.dumps({"schema": schema, "unheard": "of"}))
    assert words in refusal(history)


def test_an_unlucky_round_cannot_be_taken_out(history: History) -> None:
    """Good JSON of the right form with another checksum is told to have been changed; other white space is not ours."""
    path = the_file(history, "rounds")
    whole = json.loads(path.read_bytes())
    path.write_text(json.dumps(whole, indent=1))
    refusal(history)
    whole["content"]["rounds"].pop()
    path.write_text(json.dumps(whole, separators=(",", ":")) + "\n")
    assert "changed since it was written" in refusal(history)


def test_the_builder_of_these_tests_writes_as_we_do(history: History) -> None:
    """Otherwise the tests below would prove nothing; anybody can check the checksum with a tool at hand."""
    path = the_file(history, "rounds")
    data = path.read_bytes()
    put_content(path, content(path))
    assert path.read_bytes() == data
    _, _, rest = data.partition(b'"content":')
    assert json.loads(data)["sha256"] == hashlib.sha256(rest[: -len(b"}\n")]).hexdigest()


def first_window(plain: Any) -> Any:  # noqa: ANN401 -- plain JSON
    """The first window of the first round."""
    return plain["rounds"][0]["blocks"][0]["windows"][0]


CHANGES: list[Callable[[Any], object]] = [
    lambda plain: plain.update(extra=1),
    lambda plain: plain.pop("key"),
    lambda plain: plain["key"].update(extra="1"),
    lambda plain: plain["key"].update(candidate="other"),
    lambda plain: plain["key"]["subject"].update(host="other"),
    lambda plain: plain.update(rounds={}),
    lambda plain: plain.update(added="2025-01-39T03:04:05+00:00"),
    lambda plain: plain.update(began="yesterday"),
    lambda plain: plain["rounds"][0].update(first="both"),
    lambda plain: plain["rounds"][0].update(by_turns=0),
    lambda plain: plain["rounds"][0].update(foreign_cores=-0.5),
    lambda plain: plain["rounds"][0].update(foreign_cores=1e400),
    lambda plain: plain["rounds"][0].update(at="2025-01-02T03:04:05+02:00"),
    lambda plain: plain["rounds"][0]["sides"].update(third=plain["rounds"][0]["sides"]["base"]),
    lambda plain: plain["rounds"][0]["sides"]["base"]["client"].update(lag="gibberish"),
    lambda plain: plain["rounds"][0]["sides"]["base"]["client"].update(ceiling=0.0),
    lambda plain: plain["rounds"][0]["sides"]["base"].update(cold_start_seconds=[-1.0]),
    lambda plain: plain["rounds"][0]["blocks"][0]["windows"].pop(),
    lambda plain: plain["rounds"][0]["blocks"][0]["order"].pop(),
    lambda plain: plain["rounds"][0]["blocks"][0].update(order=["base"] * 4),
    lambda plain: plain["rounds"][0]["blocks"][0].update(order=["base", "x", "x", "base"]),
    lambda plain: plain["rounds"][0]["blocks"].append({"order": [], "windows": []}),
    lambda plain: first_window(plain).update(requests=3),
    lambda plain: first_window(plain).update(seconds=0.0),
    lambda plain: first_window(plain).update(latency="0 0"),
    lambda plain: first_window(plain).update(errors={"timeout": -1}),
    lambda plain: plain["metrics"]["throughput"].update(tolerance=0.0),
    lambda plain: plain["metrics"]["throughput"].update(decision="GREEN"),
    lambda plain: plain["metrics"]["throughput"]["looks"].reverse(),
    lambda plain: plain["metrics"]["throughput"].update(looks=[9]),
    lambda plain: plain["metrics"]["throughput"].update(looks=[-1]),
    lambda plain: plain["metrics"]["throughput"].update(differences=[[]]),
    lambda plain: plain["metrics"]["throughput"].update(differences=[[1e9]]),
]


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
def test_a_wrong_field_is_refused_even_with_a_right_checksum(history: History, change: Callable[[Any], object]) -> None:
    """Other types, missing and unknown fields and numbers out of range are no evidence, however they came there."""
    path = the_file(history, "rounds")
    plain = content(path)
    change(plain)
    put_content(path, plain)
    refusal(history)


def test_a_file_under_another_name_is_no_evidence(history: History) -> None:
    """A file says in full what it is of, and is believed in that before its name: no lucky candidate can be copied."""
    other = replace(SUBJECT, nodeid="another")
    the_file(history, "past").replace(history.folder / f"{other.digest()}-{pair().digest()}.past.json")
    past = history.past_rounds(other)
    assert past.comparisons == ()
    assert "another" in past.notes[0]
    history.save(pair("lucky"), small_sequence())
    lucky = history.folder / f"{SUBJECT.digest()}-{pair('lucky').digest()}.rounds.json"
    lucky.replace(history.folder / f"{SUBJECT.digest()}-{pair().digest()}.rounds.json")
    assert "another comparison" in refusal(history)


def test_one_damaged_past_does_not_cost_the_others(history: History) -> None:
    """What can be read of the past is used, and what cannot is named."""
    the_file(history, "past").write_text("damage")
    history.save(pair("other"), small_sequence((0.5,)))
    past = history.past_rounds(SUBJECT)
    assert [each.differences["throughput"] for each in past.comparisons] == [((0.5,),)]
    assert [pair().digest() in note for note in past.notes] == [True]


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_refused_without_waiting(history: History, make: Callable[[Path], None]) -> None:
    """A pipe that nobody writes to would be read for ever."""
    for kind in ("rounds", "past"):
        path = the_file(history, kind)
        path.unlink()
        make(path)
    assert "no regular file" in refusal(history)
    assert len(history.past_rounds(SUBJECT).notes) == 1


def test_a_file_too_large_to_be_ours_is_not_read(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's gigabytes are read into memory."""
    monkeypatch.setattr(checksummed, "MAX_BYTES", 100)
    assert "too large" in refusal(history)


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path: Path) -> None:
    """Neither rounds nor the past are taken for absent."""
    (tmp_path / "gpuserve").write_text("no folder")
    history = History(tmp_path / "gpuserve", now=lambda: TODAY)
    with pytest.raises(HistoryUnusable):
        history.load(pair())
    past = history.past_rounds(SUBJECT)
    assert past.comparisons == ()
    assert str(tmp_path / "gpuserve") in past.notes[0]
