"""What a run brings back, wherever it is cut: each step's result and log, and the files that the steps wrote.

A lent machine gives back no more than eight files of 16 MiB. Standard library alone.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

RESULTS: Final = "results.jsonl"
"""A record a line, as soon as its step has ended."""

RUNNING: Final = "running.log"
"""Of the step that is under way: a line with its name, and with how many records there were, and all it has printed."""

FILES: Final = "files.tar.gz"

MOST_LOG_BYTES: Final = 1 << 19
"""Of a step; of a longer log the end is kept."""

MOST_FILES_BYTES: Final = 15 << 20
"""Of all files, compressed; the largest ones stay behind."""

PASSED: Final = "passed"


@dataclass(frozen=True)
class Record:
    """How a step went.

    Args:
        name: Of the step.
        outcome: ``passed``, ``failed``, ``skipped``, ``overran`` (it was ended), or ``cut`` (the run was).
        seconds: That it took.
        why: Of an outcome that is not ``passed``.
        log: What it printed.
    """

    name: str
    outcome: str
    seconds: float = 0.0
    why: str = ""
    log: str = ""


class Records:
    """Those in a folder, which is made, and to which more are written.

    Args:
        folder: The folder; a step in which an earlier run was cut has its record there from now on.
        kept: Where steps leave the files that are brought back; those of the folder are there from now on.
    """

    def __init__(self, folder: Path, kept: Path) -> None:
        self.log = folder / RUNNING
        self._folder, self._kept = folder, kept
        self._packed: set[tuple[Path, int, int]] = set()
        folder.mkdir(parents=True, exist_ok=True)
        kept.mkdir(parents=True)
        unpack_files(folder, kept)
        # Of a line that is not whole the rest would become part of the next one.
        (folder / RESULTS).write_text("".join(f"{line}\n" for line in _whole_lines(folder)), encoding="utf-8")
        if self.log.exists():
            for record in list(read_records(folder).values())[-1:]:
                self.add(record)

    def begin(self, name: str) -> None:
        """Say which step is under way."""
        self.log.write_text(f"{name} {len(_whole_lines(self._folder))}\n", encoding="utf-8")

    def add(self, record: Record) -> None:
        """Write what a step left, and then its line with its log, whole."""
        self.save_files()
        line = json.dumps(asdict(replace(record, log=_read_log(self.log)))).encode() + b"\n"
        with (self._folder / RESULTS).open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.log.unlink(missing_ok=True)

    def save_files(self) -> None:
        """Pack all files anew where one has changed, the small ones first."""
        sized = [(path, path.stat()) for path in self._kept.rglob("*") if path.is_file()]
        found = {(path, stat.st_size, stat.st_mtime_ns) for path, stat in sized}
        if found != self._packed:
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w:gz") as archive:
                for path, stat in sorted(sized, key=lambda each: each[1].st_size):
                    if packed.tell() + stat.st_size <= MOST_FILES_BYTES:
                        archive.add(path, path.relative_to(self._kept))
            new = self._folder / f"{FILES}.new"
            new.write_bytes(packed.getvalue())
            new.replace(self._folder / FILES)
            self._packed = found


def _whole_lines(folder: Path) -> list[str]:
    results = folder / RESULTS
    return results.read_text(encoding="utf-8").split("\n")[:-1] if results.exists() else []


def _read_log(log: Path) -> str:
    return log.read_bytes()[-MOST_LOG_BYTES:].decode(errors="replace") if log.exists() else ""


def read_records(folder: Path) -> dict[str, Record]:
    """Read each step's last record, the newest one last; a step in which a run was cut has one, too."""
    records = [Record(**json.loads(line)) for line in _whole_lines(folder)]
    if (folder / RUNNING).exists():
        name, _, after = (folder / RUNNING).read_text(errors="replace").partition("\n")[0].partition(" ")
        if after == str(len(records)):
            records.append(Record(name, "cut", 0.0, "the run was ended in it", _read_log(folder / RUNNING)))
    found: dict[str, Record] = {}
    for record in records:
        found.pop(record.name, None)
        found[record.name] = record
    return found


def unpack_files(folder: Path, into: Path) -> None:
    """Unpack what the steps wrote; nothing where no step did."""
    if (folder / FILES).exists():
        with tarfile.open(folder / FILES) as archive:
            archive.extractall(into, filter="data")
