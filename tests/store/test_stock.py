"""What the header says of the baselines that are there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.report.header import Header
from pytest_gpuserve.store.baseline import write
from pytest_gpuserve.store.stock import Stock, stock_of
from tests.support.builders import COMMIT, OTHER_COMMIT, entry, session

if TYPE_CHECKING:
    from pathlib import Path


def test_entries_are_counted_and_the_newest_is_known(tmp_path: Path) -> None:
    """Over all files below the folder; the newest by its newest session, with the commit of its entry."""
    write(tmp_path / "a.json", {"test_a": entry(), "test_b": entry()})
    old, new = session(at="2024-05-06T00:00:00+00:00"), session(at="2025-05-06T00:00:00+00:00")
    (tmp_path / "x").mkdir()
    write(tmp_path / "x" / "b.json", {"test_c": entry(new, old, commit=OTHER_COMMIT)})
    found = stock_of(tmp_path)
    assert found == Stock(3, "2025-05-06T00:00:00+00:00", OTHER_COMMIT)
    assert str(found) == "3 entries, the newest of 2025-05-06 at fedcba987654"


def test_published_numbers_are_no_baselines(tmp_path: Path) -> None:
    """They lie below the same folder, in a form of their own; an entry from outside of git has a date alone."""
    assert str(stock_of(tmp_path / "T4")) == "no entries"
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "shop.json").write_text("{}")
    assert stock_of(tmp_path) == Stock()
    write(tmp_path / "a.json", {"test_a": entry(commit=None)})
    assert str(stock_of(tmp_path)) == "1 entry, the newest of 2025-01-02"


@pytest.mark.parametrize("damage", ["", "{", "[]", "\xff", '{"entries": {"a": {}}}', "[" * 5000])
def test_what_cannot_be_read_is_said(tmp_path: Path, damage: str) -> None:
    """It is neither nothing nor an end of the run: the test that needs it fails and says why."""
    write(tmp_path / "a.json", {"test_a": entry()})
    (tmp_path / "b.json").write_bytes(damage.encode("latin-1"))
    found = stock_of(tmp_path)
    assert (found.entries, found.unreadable) == (1, 1)
    assert str(found).endswith(", 1 file that cannot be read")


def test_a_moment_that_is_none_is_not_shown(tmp_path: Path) -> None:
    """What stands in a file may be anything; only a moment is shown as one."""
    write(tmp_path / "a.json", {"test_a": entry()})
    plain = json.loads((tmp_path / "a.json").read_text())
    plain["entries"]["test_a"]["sessions"][0]["at"] = "\x1b[31mtomorrow"
    (tmp_path / "a.json").write_text(json.dumps(plain))
    assert stock_of(tmp_path) == Stock(unreadable=1)


def test_the_header_says_it_all() -> None:
    """Device, mode, baselines if there are any, budget and comparisons; what cannot be printed is an escape."""
    header = Header("T4", "Tesla T4", "gating against baselines/T4", 300.0, 12, str(Stock(3, "2025-01-02T", COMMIT)))
    assert str(header) == (
        "T4 (Tesla T4), gating against baselines/T4 (3 entries, the newest of 2025-01-02 at 0123456789ab),"
        " at most 5 min of measuring a test, 12 comparisons planned"
    )
    assert str(Header("cpu", "A\x1bCPU", "side by side with main", 60.0, 1)) == (
        r"cpu (A\x1bCPU), side by side with main, at most 60.0 s of measuring a test, 1 comparison planned"
    )
