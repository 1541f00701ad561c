"""The end of a log: short, and with no part of a secret in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.process.logs import read_tail

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "hf_abcdefghijkl"

READ_BYTES = 1 << 16
COLUMNS = 400


def masked(text: str) -> str:
    """Stands for what knows the secret."""
    return text.replace(SECRET, "<KEY>")


@pytest.mark.parametrize("missing", range(1, len(SECRET)))
def test_a_secret_across_the_end_of_a_line_is_none_of_it(missing: int, tmp_path: Path) -> None:
    """However much of it lies before the cut: it is replaced before the line is cut."""
    filling = "x" * (COLUMNS - missing)
    (tmp_path / "log").write_text(f"first\n{filling}{SECRET}\n")
    first, line = read_tail(tmp_path / "log", start=0, lines=2, shown=masked).splitlines()
    whole = f"{filling}<KEY>"
    assert (first, line) == ("first", whole if len(whole) <= COLUMNS else f"{whole[:COLUMNS]}…")


@pytest.mark.parametrize("left", [1, 7, len(SECRET) - 1])
def test_a_secret_across_the_beginning_is_none_of_it(left: int, tmp_path: Path) -> None:
    """Of a log that is a single long line only the end is read, which may begin within a secret."""
    (tmp_path / "log").write_text(f"{'y' * 9}{SECRET}{'x' * (READ_BYTES - left)}")
    assert read_tail(tmp_path / "log", start=0, lines=2, shown=masked) == "x" * COLUMNS + "…"


def test_a_log_is_read_from_its_beginning_where_it_is_short(tmp_path: Path) -> None:
    """Nothing of it is left out, neither from where this start began to write."""
    (tmp_path / "log").write_text(f"another\n{'x' * 20}{SECRET}")
    assert read_tail(tmp_path / "log", start=8, lines=2, shown=masked) == f"{'x' * 20}<KEY>"
    assert read_tail(tmp_path / "none", start=0, lines=2, shown=masked) == ""
