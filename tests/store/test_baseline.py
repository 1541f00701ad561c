"""Baseline files: read back as written, readable by people, written whole or not at all, and counted."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from pytest_gpuserve.errors import BaselineUnusable
from pytest_gpuserve.measure.window import GpuUse
from pytest_gpuserve.store.baseline import read, render, write
from pytest_gpuserve.store.files import stock_of
from pytest_gpuserve.verdict.metric import METRICS
from tests.support.builders import entry, session, small_entries, start, window

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.store.schema import Entry

SMALL = small_entries()
TEXT = render(SMALL)

SUMMARISED = {name for name, metric in METRICS.items() if not metric.on_request} | {"cold_start"}
"""What is known of a load without a GPU."""


def entries_of(path: Path) -> dict[str, Entry]:
    """The entries that a file holds."""
    return {key: stored.entry for key, stored in read(path).items()}


def test_what_is_written_is_read_back(path: Path) -> None:
    """Entries and their sessions survive a file, and writing them again changes no byte of it."""
    entries = {"test_b": entry(session(), session(start(window(items=None, batches=None)), start())), **SMALL}
    write(path, entries)
    assert entries_of(path) == entries
    assert [len(stored.sessions) for stored in read(path).values()] == [1, 2]
    assert render(entries_of(path)).encode() == path.read_bytes()


def test_a_file_without_entries_is_removed(path: Path) -> None:
    """Removing the last entry removes the file; a second removal is fine, and a missing file has no entries."""
    write(path, SMALL)
    write(path, {})
    write(path, {})
    assert not path.exists()
    assert read(path) == {}


def test_the_file_reads_from_the_top() -> None:
    """The summary comes first with one metric a line, the starts after it one a line, all keys sorted."""
    lines = TEXT.splitlines()
    assert lines[:5] == ["{", ' "schema": 5,', ' "summary": {', '  "test_a[1]": {', '   "batching_ratio": 4.0,']
    assert [line.split('"')[1] for line in lines[4:11]] == sorted(SUMMARISED)
    assert sum('"requests": ' in line for line in lines) == 2
    plain = json.loads(TEXT)
    assert list(plain["entries"]["test_a[1]"]) == sorted(plain["entries"]["test_a[1]"])
    assert list(plain["entries"]["test_a[1]"]["sessions"][0]) == sorted(plain["entries"]["test_a[1]"]["sessions"][0])
    assert TEXT.endswith("}\n")
    one, other = entry(), entry(session(), session())
    assert render({"b": one, "a": other}) == render({"a": other, "b": one})


def test_what_the_gpus_did_is_in_the_summary(path: Path) -> None:
    """Known values of eight full GPUs are listed, and read back; unknown ones are absent instead of zero."""
    gpus = GpuUse(joules=4.0, memory_bytes=8 * 141e9)
    used = start(replace(window(), gpus=gpus))
    uncounted = start(window(items=None, batches=None))
    write(path, {"a": entry(session(used, used)), "b": entry(session(uncounted, uncounted))})
    text = path.read_text()
    assert read(path)["a"].sessions[0].windows[0].gpus == gpus
    summary = json.loads(text)["summary"]
    assert summary["a"].items() >= {"energy_per_inference": 0.4, "gpu_memory": 1.128e12}.items()
    assert "gpu_utilisation" not in text
    assert '"gpus": {"joules": 4.0, "memory_bytes": 1128000000000.0}' in text
    assert set(summary["b"]) == SUMMARISED - {"batching_ratio"}


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({"odd": msgspec.structs.replace(entry(), sessions=[])}, id="no session"),
        pytest.param({"odd": msgspec.structs.replace(entry(), commit="not a commit")}, id="commit"),
        pytest.param({"odd": entry(session(start(window(seconds=0.0)), start()))}, id="no time"),
        pytest.param({"odd": entry(session(*[start(window(seconds=0.0))] * 2))}, id="no time at all"),
        pytest.param({"odd": entry(session(start(window(seconds=float("nan"))), start()))}, id="NaN"),
        pytest.param({"odd": entry(session(start(cold_start_seconds=float("inf")), start()))}, id="infinity"),
        pytest.param({"odd": entry(session(start()))}, id="one start"),
        pytest.param({"test \ud800": entry()}, id="half of a surrogate pair in a name"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(path: Path, odd: dict[str, Entry]) -> None:
    """A mistake of ours shows before it has replaced a good file."""
    write(path, SMALL)
    with pytest.raises(BaselineUnusable, match="not written") as caught:
        write(path, {**SMALL, **odd})
    assert str(path) in str(caught.value)
    assert path.read_bytes() == TEXT.encode()


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace", "pathlib.Path.chmod"])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str, failure: BaseException
) -> None:
    """A failed write leaves the file unchanged, without a leftover beside it."""
    write(path, {"old": entry()})
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(step, fail)
    with pytest.raises(BaselineUnusable if isinstance(failure, OSError) else KeyboardInterrupt):
        write(path, SMALL)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """If the file cannot be written, the error names it and a remedy."""
    (tmp_path / "cpu").write_text("a file where a folder should be")
    with pytest.raises(BaselineUnusable, match="--baseline-dir=DIR") as caught:
        write(tmp_path / "cpu" / "test_y.json", SMALL)
    assert str(tmp_path / "cpu" / "test_y.json") in str(caught.value)


def test_entries_are_counted(tmp_path: Path) -> None:
    """The entries of all baselines below a folder are counted; files of another kind are not baselines."""
    assert stock_of(tmp_path / "nowhere") == (0, 0)
    write(tmp_path / "a.json", {"test_a": entry(), "test_b": entry()})
    (tmp_path / "x").mkdir()
    write(tmp_path / "x" / "b.json", {"test_c": entry()})
    (tmp_path / "shop.json").write_text('{"schema": 1, "entries": []}')
    assert stock_of(tmp_path) == (3, 0)


@pytest.mark.parametrize("damage", ["", "{", "[]", "\xff", '{"summary": {}, "entries": {"a": {}}}', "[" * 5000])
def test_what_cannot_be_read_is_said(tmp_path: Path, damage: str) -> None:
    """It is neither ignored nor the end of the run: the test that needs it fails with the reason."""
    write(tmp_path / "a.json", {"test_a": entry()})
    (tmp_path / "b.json").write_bytes(damage.encode("latin-1"))
    assert stock_of(tmp_path) == (1, 1)
