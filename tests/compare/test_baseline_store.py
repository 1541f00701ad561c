"""The baselines of a device: their places, the pooling of sessions, and safe writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuserve.compare.baseline_store import (
    MOST_SESSIONS,
    BaselineKey,
    BaselineStore,
    Workload,
)
from pytest_gpuserve.errors import BaselineUnusable
from pytest_gpuserve.store.baseline import Stored
from tests.support.builders import COMMIT, OTHER_COMMIT, here, session

WORKLOAD = Workload({"server": "mosec", "concurrency": "50"}, {"app_sha256": "ab"})
NODEID = "suites/x/test_y.py::test_z[50]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of one device."""
    return tmp_path / "baselines" / "cpu"


def record(
    folder: Path,
    *days: int,
    host: str = "host-a",
    commit: str | None = COMMIT,
    clean: bool = True,
    workload: Workload = WORKLOAD,
    reason: str | None = None,
) -> str:
    """Record sessions of these days of January, as a new run would; returns what was said."""
    baseline_store = BaselineStore(folder, here(host, commit=commit, clean=clean))
    sessions = [session(at=f"2025-01-{day:02d}T00:00:00+00:00") for day in days]
    return baseline_store.record(baseline_store.key_of(NODEID, ""), workload, sessions, reason)


def stored(folder: Path) -> Stored:
    """Entry that a new run finds."""
    baseline_store = BaselineStore(folder, here())
    found = baseline_store.find(baseline_store.key_of(NODEID, ""))
    assert found is not None
    return found


def days(folder: Path) -> list[int]:
    """The days whose sessions are kept."""
    return [int(record.at[8:10]) for record in stored(folder).entry.sessions]


@pytest.mark.parametrize(
    ("nodeid", "label", "file", "key"),
    [
        ("suites/x/test_y.py::test_z[1]", "", "x/test_y.json", "test_z[1]"),
        ("suites/test_y.py::test_z", "", "test_y.json", "test_z"),
        ("x/test_y.py::test_z", "", "x/test_y.json", "test_z"),
        ("perf/suites/test_y.py::test_z", "", "perf/suites/test_y.json", "test_z"),
        ("suites/x/test_y.py::TestA::test_z[a]", "", "x/test_y.json", "TestA::test_z[a]"),
        ("suites/x/test_y.py::test_z[a::b/c.py]", "", "x/test_y.json", "test_z[a::b/c.py]"),
        ("suites/x/test_y.py::test_z[1]", "load 2", "x/test_y.json", "test_z[1] load 2"),
        ("../x/test_y.py::test_z", "", "x/test_y.json", "test_z"),
        ("/x/test_y.py::test_z", "", "x/test_y.json", "test_z"),
    ],
)
def test_every_test_has_its_place(folder: Path, nodeid: str, label: str, file: str, key: str) -> None:
    """Files mirror the tests below ``suites/``, entries are named as pytest names the test; none leads elsewhere."""
    assert BaselineStore(folder, here()).key_of(nodeid, label) == BaselineKey(folder / file, key)


def test_what_is_recorded_is_found_by_the_next_run(folder: Path) -> None:
    """A recording is complete on disk: workload, revision, reason and sessions; to look for one makes no file."""
    baseline_store = BaselineStore(folder, here())
    assert baseline_store.find(baseline_store.key_of(NODEID, "")) is None
    assert not folder.exists()
    assert record(folder, 1, 2, reason="a faster tokenizer") == "recorded (2 sessions)"
    entry = stored(folder).entry
    assert (entry.workload, entry.information) == (WORKLOAD.must_match, WORKLOAD.information)
    assert (entry.commit, entry.reason) == (COMMIT, "a faster tokenizer")
    assert stored(folder).sessions[0].at == "2025-01-01T00:00:00+00:00"
    assert (folder / "x" / "test_y.json").is_file()


def test_the_same_commit_is_pooled(folder: Path) -> None:
    """Sessions of one code on one host add up over runs, committed or not, and keep the reason that was given."""
    for clean in (True, False):
        record(folder, 1, reason="why", clean=clean)
        assert record(folder, 2, clean=clean) == "added to (2 sessions)"
        assert record(folder, 3, clean=clean) == "added to (3 sessions)"
        assert days(folder) == [1, 2, 3]
        assert stored(folder).entry.reason == "why"


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({}, {"commit": OTHER_COMMIT}),
        ({}, {"clean": False}),
        ({"clean": False}, {}),
        ({"commit": None, "clean": False}, {"commit": None, "clean": False}),
        ({"commit": None}, {"commit": None}),
        ({}, {"host": "host-b"}),
        ({}, {"workload": Workload({"server": "mosec", "concurrency": "80"}, {})}),
    ],
    ids=["other commit", "now dirty", "was dirty", "no git", "no commit", "other host", "other workload"],
)
def test_different_code_replaces(folder: Path, first: dict[str, object], then: dict[str, object]) -> None:
    """Sessions of possibly different code under the same load are never one sample."""
    record(folder, 1, reason="old", **first)  # type: ignore[arg-type]
    assert record(folder, 2, **then) == "replaced (1 session)"  # type: ignore[arg-type]
    assert days(folder) == [2]
    assert stored(folder).entry.reason is None


def test_only_the_newest_sessions_are_kept(folder: Path) -> None:
    """An entry keeps a bounded number of sessions, the newest ones."""
    record(folder, *range(1, 12))
    assert record(folder, *range(12, 20)) == f"added to ({MOST_SESSIONS} sessions)"
    assert days(folder) == list(range(20 - MOST_SESSIONS, 20))


@pytest.mark.parametrize("content", [b"", b"{}", b"<<<<<<< HEAD\n"])
def test_a_file_that_cannot_be_read_is_left_alone(folder: Path, content: bytes) -> None:
    """Nothing is recorded over it or removed from it: it may be the only record of what was accepted."""
    path = BaselineStore(folder, here()).key_of(NODEID, "").path
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    for change in (lambda: record(folder, 1), lambda: BaselineStore(folder, here()).remove(path, ["test_z[50]"])):
        with pytest.raises(BaselineUnusable, match=r"test_y\.json"):
            change()
        assert path.read_bytes() == content


def test_removing_entries_leaves_the_others(folder: Path) -> None:
    """The file goes with its last entry; removing a missing entry is fine."""
    record(folder, 1)
    baseline_store = BaselineStore(folder, here())
    first, other = baseline_store.key_of(NODEID, ""), baseline_store.key_of(NODEID, "load 2")
    baseline_store.record(other, WORKLOAD, [session()], None)
    assert baseline_store.unused(other.path, {other.entry}) == ["test_z[50]"]
    baseline_store.remove(other.path, [other.entry, "never there"])
    assert days(folder) == [1]
    for _ in range(2):
        baseline_store.remove(first.path, [first.entry])
    assert baseline_store.find(first) is None
    assert not first.path.exists()
