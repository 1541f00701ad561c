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


def _cut(line: str) -> str:
    return line if len(line) <= COLUMNS else f"{line[:COLUMNS]}…"


ACROSS = [(f"{'x' * (COLUMNS - missing)}{SECRET}", f"{'x' * (COLUMNS - missing)}<KEY>") for missing in range(1, 15)]


@pytest.mark.parametrize(
    ("written", "start", "shown"),
    [
        # However much of it lies before the cut of a line: it is replaced before that is cut.
        *((f"first\n{line}\n", 0, f"first\n{_cut(whole)}") for line, whole in ACROSS),
        # Of a single long line only the end is read, which may begin within a secret.
        *((f"yyyy{SECRET}{'x' * (READ_BYTES - left)}", 0, "x" * COLUMNS + "…") for left in (1, 7, len(SECRET) - 1)),
        # Nothing of a short one is left out, neither from where this start began to write.
        (f"another\n{'x' * 20}{SECRET}", 8, f"{'x' * 20}<KEY>"),
    ],
)
def test_the_end_of_a_log_is_shown_without_a_secret(tmp_path: Path, written: str, start: int, shown: str) -> None:
    """The last two lines, each cut where it is long, and no part of a secret; of no log nothing."""
    (tmp_path / "log").write_text(written)
    assert read_tail(tmp_path / "log", start=start, lines=2, shown=masked) == shown
    assert read_tail(tmp_path / "none", start=0, lines=2, shown=masked) == ""
