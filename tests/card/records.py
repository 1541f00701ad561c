"""The archive that a run brings back, wherever it is cut: each step's outcome and log, and the files it wrote.

A lent machine gives back few files. Standard library alone.
"""

from __future__ import annotations

import json
import tarfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

ARCHIVE: Final = "run.tar.gz"

MOST_BYTES: Final = 1 << 22
"""A larger file stays behind."""

PASSED: Final = "passed"

_RECORDS: Final = "records.jsonl"


@dataclass(frozen=True)
class Record:
    """How a step went.

    Args:
        name: Its name.
        outcome: ``passed``, ``failed``, ``skipped``, ``overran`` (it was ended), or ``cut`` (the run was).
        seconds: Its duration.
        why: Reason of an outcome that is not ``passed``.
    """

    name: str
    outcome: str
    seconds: float = 0.0
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.outcome} in {self.seconds:.1f} s {self.why}".rstrip()


class Records:
    """Records of a run, in a folder with the logs of its steps and the files that they write.

    Args:
        kept: The folder, which is made; it has the files of an earlier run from the beginning.
        out: The folder of the archive, which is made.
    """

    def __init__(self, kept: Path, out: Path) -> None:
        self._kept, self._out = kept, out
        out.mkdir(parents=True, exist_ok=True)
        unpack(out, kept)

    def begin(self, name: str) -> Path:
        """Note that a step is under way, and return the file for its log."""
        log = log_of(self._kept, name)
        log.parent.mkdir(exist_ok=True)
        log.write_bytes(b"")
        # Counts until the step's own record.
        self.add(Record(name, "cut", why="the run was ended in it"))
        return log

    def add(self, record: Record) -> None:
        """Note how a step went, and bring all to where nothing is lost."""
        with (self._kept / _RECORDS).open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(asdict(record))}\n")
        self.save()

    def save(self) -> None:
        """Write the archive anew: whoever ends the run finds the old one or the new one, whole."""
        new = self._out / f"{ARCHIVE}.new"
        # A file that a step is writing may become shorter meanwhile.
        with suppress(OSError):
            with tarfile.open(new, "w:gz") as archive:
                archive.add(self._kept, ".", filter=lambda info: info if info.size <= MOST_BYTES else None)
            new.replace(self._out / ARCHIVE)


def unpack(out: Path, kept: Path) -> None:
    """Make a folder of what a run brought back, if there was one."""
    kept.mkdir(parents=True, exist_ok=True)
    if (out / ARCHIVE).exists():
        with tarfile.open(out / ARCHIVE) as archive:
            # Debian's Python 3.11.2 has no filters.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(kept)


def read_records(kept: Path) -> dict[str, Record]:
    """Read each step's last record, the newest one last."""
    found: dict[str, Record] = {}
    records = kept / _RECORDS
    for line in records.read_text(encoding="utf-8").splitlines() if records.exists() else ():
        record = Record(**json.loads(line))
        found.pop(record.name, None)
        found[record.name] = record
    return found


def log_of(kept: Path, name: str) -> Path:
    """The file of a step's log."""
    return kept / "logs" / f"{name}.log"
