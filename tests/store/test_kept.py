"""Rounds kept between runs: read back as they were, for their own pair only, and never from a damaged file."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime
from pytest_gpuserve.measure.rounds import Round
from pytest_gpuserve.measure.window import Start
from pytest_gpuserve.store.kept import DAYS, MOST_FILES, KeptFolder, KeptMetric, KeptRounds, Pair, Subject
from pytest_gpuserve.verdict.evidence import RoundPoint
from pytest_gpuserve.verdict.verdict import Verdict
from tests.support.builders import because, streamed, window

AT = "2025-01-02T03:04:05+00:00"
SUBJECT = Subject("test_y.py::test_a[1]", "burst", "host-a", "cpu", {"server": "mosec", "concurrency": "50"})
PAIR = Pair(SUBJECT, base="b" * 64 + " python 3.11.7", candidate="c" * 64, software={"mosec": "0.9.5"})
METRICS = {
    "throughput": KeptMetric(0.05, (0, 1), Verdict.PASS, ((0.01, -0.02),)),
    "latency.p99": KeptMetric(0.2, (1,)),
}


def small_round() -> Round:
    """A round of one block with every field known."""
    part = Counters(20, 5, {"4": 5}, {"compute": StageTime(0.5, 5)}, requests=20)
    failed = msgspec.structs.replace(
        streamed(window((0.01, 0.02)), tokens=11, usage=True),
        errors={"timeout": 1},
        counters=replace(part, parts={"model": part}),
        sending_ns=250_000_000,
        receiving_ns=0,
    )
    start = Start(
        (failed,) * 2,
        1.5,
        answers=20,
        answers_checked=20,
        cold_start_parts={"import": 1.25},
        settings={"batch": ServerSetting("32", None), "delay": ServerSetting(None, "10")},
    )
    return Round({"base": (start,), "candidate": (start, Start((), None))}, AT)


@pytest.fixture
def notes() -> list[str]:
    """Notes so far."""
    return []


@pytest.fixture
def folder(tmp_path: Path, notes: list[str]) -> KeptFolder:
    """A folder that does not exist yet."""
    return KeptFolder(tmp_path / "kept", notes.append)


def files(tmp_path: Path) -> list[Path]:
    """Files in the folder."""
    return sorted((tmp_path / "kept").iterdir())


def test_rounds_are_read_back_as_they_were(folder: KeptFolder, tmp_path: Path, notes: list[str]) -> None:
    """Windows, failed requests, looks, tolerances and decisions survive; the last save counts, and is one file."""
    assert folder.load(PAIR) is None
    folder.save(PAIR, [small_round()], {})
    folder.save(PAIR, [small_round()] * 2, METRICS)
    kept = folder.load(PAIR)
    assert kept is not None
    assert (kept.rounds, kept.metrics, kept.pair) == ((small_round(),) * 2, METRICS, PAIR)
    assert (len(files(tmp_path)), notes) == (1, [])


@pytest.mark.parametrize(
    "other",
    [
        replace(PAIR, base="another"),
        replace(PAIR, candidate="another"),
        replace(PAIR, software={}),
        replace(PAIR, subject=replace(SUBJECT, nodeid="another")),
        replace(PAIR, subject=replace(SUBJECT, label="another")),
        replace(PAIR, subject=replace(SUBJECT, host="another")),
        replace(PAIR, subject=replace(SUBJECT, device="another")),
        replace(PAIR, subject=replace(SUBJECT, workload={})),
    ],
)
def test_another_pair_begins_anew(folder: KeptFolder, other: Pair) -> None:
    """A pair that differs in anything has no rounds of this one."""
    folder.save(PAIR, [small_round()], METRICS)
    assert folder.load(other) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"}", b""),
        (b'"schema":8', b'"schema":7'),
        (b'"cpu_ns":10000000', b'"client_cpu_seconds":0.01'),
        (b'"looks":[0,1]', b'"looks":[1,0]'),
        (b'"looks":[0,1]', b'"looks":[0,8]'),
        (b'"decision":"PASS"', b'"decision":"FINE"'),
        (b'"differences":[[0.01,-0.02]]', b'"differences":[[]]'),
        (b"c" * 64, b"d" * 64),
    ],
)
def test_a_file_that_is_damaged_counts_for_nothing(
    folder: KeptFolder, tmp_path: Path, notes: list[str], old: bytes, new: bytes
) -> None:
    """Cut off, of another version or form, inconsistent or copied, it is put aside with a note; the next is whole."""
    folder.save(PAIR, [small_round()], METRICS)
    (path,) = files(tmp_path)
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    assert folder.load(PAIR) is None
    (note,) = notes
    assert "begins anew" in note
    assert [each.suffix for each in files(tmp_path)] == [".damaged"]
    assert str(path) in note
    folder.save(PAIR, [small_round()], METRICS)
    assert folder.load(PAIR) is not None


def test_only_sound_and_consistent_rounds_are_kept() -> None:
    """No round with problems, no look beyond the rounds."""
    spoiled = replace(small_round(), problems=because("it died"))
    with pytest.raises(ValueError, match="problems"):
        KeptRounds(PAIR, AT, {}, (spoiled,))
    with pytest.raises(ValueError, match="more rounds"):
        KeptRounds(PAIR, AT, METRICS, ())


def test_the_past_is_that_of_other_pairs_of_the_subject(folder: KeptFolder, tmp_path: Path) -> None:
    """The past of a pair is that of other pairs of its test; a damaged file costs only its own."""
    elsewhere = replace(PAIR, subject=replace(SUBJECT, nodeid="another"))
    for pair in (PAIR, elsewhere, replace(PAIR, candidate="d"), replace(PAIR, candidate="e")):
        folder.save(pair, [small_round()], METRICS)
    assert folder.past(PAIR)["throughput"] == [[RoundPoint((0.01, -0.02))]] * 2
    next(path for path in files(tmp_path) if b'"candidate":"d"' in path.read_bytes()).write_bytes(b"{")
    assert folder.past(PAIR)["throughput"] == [[RoundPoint((0.01, -0.02))]]


def test_old_files_are_not_used_and_the_next_save_removes_them(tmp_path: Path) -> None:
    """Files older than `DAYS`, and half-written ones, are not used and removed; other files stay."""
    now = time.time()
    folder = KeptFolder(tmp_path / "kept", pytest.fail)
    later = KeptFolder(tmp_path / "kept", pytest.fail, now=lambda: now + 86_400 * DAYS + 60)
    folder.save(PAIR, [small_round()], METRICS)
    (path,) = files(tmp_path)
    (path.parent / f".{path.name}.x_y1").write_text("{")
    (path.parent / "README").write_text("")
    assert later.load(PAIR) is None
    assert later.past(replace(PAIR, candidate="d")) == {}
    os.utime(path.parent / "README", (now + 86_400 * 60,) * 2)
    later.save(replace(PAIR, candidate="d"), [small_round()], METRICS)
    assert "README" in {each.name for each in files(tmp_path)}
    assert path not in files(tmp_path)


def test_only_so_many_pairs_of_a_test_are_kept(folder: KeptFolder, tmp_path: Path) -> None:
    """The oldest go, never the pair that is saved, nor those of another test."""
    elsewhere = replace(PAIR, subject=replace(SUBJECT, nodeid="another"))
    folder.save(elsewhere, [small_round()], METRICS)
    for number in range(MOST_FILES + 2):
        folder.save(replace(PAIR, candidate=str(number)), [small_round()], METRICS)
        newest = max(files(tmp_path), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (time.time() - 1000 + number,) * 2)
    assert len(files(tmp_path)) == MOST_FILES + 1
    assert folder.load(elsewhere) is not None
    assert folder.load(replace(PAIR, candidate="0")) is None
    assert folder.load(replace(PAIR, candidate=str(MOST_FILES + 1))) is not None


def test_a_folder_that_cannot_be_written_is_noted(
    folder: KeptFolder, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on; the old file is whole."""
    folder.save(PAIR, [small_round()], METRICS)

    def full(*_: Any) -> None:  # noqa: ANN401 -- of os
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    folder.save(PAIR, [small_round()] * 2, METRICS)
    kept = folder.load(PAIR)
    assert kept is not None
    assert len(kept.rounds) == 1
    (note,) = notes
    assert "No space left" in note
