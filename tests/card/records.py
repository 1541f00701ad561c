"""What a run brings back: a line of JSON for each step, all logs, and the files that the steps wrote.

They are three files, for a lent machine gives back no more than eight: `RESULTS`, `LOGS`, `FILES`; `RUNNING` is the log
of the step that is under way. A step's log is written before its line, so a line never lacks its log.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from pathlib import Path

RESULTS: Final = "results.jsonl"
LOGS: Final = "logs.txt"
FILES: Final = "files.tar.gz"
RUNNING: Final = "running.log"

MOST_LOG_BYTES: Final = 1 << 19
"""Of a step; of a longer log the begin and the end are kept."""

MOST_FILE_BYTES: Final = 1 << 20
"""A file that is larger stays behind."""

MOST_FILES_BYTES: Final = 15 << 20
"""Of all files, compressed."""

TAIL_LINES: Final = 40

Outcome = Literal["passed", "failed", "overran", "skipped"]


@dataclass(frozen=True)
class Record:
    """How a step went.

    Args:
        name: Of the step.
        outcome: ``overran`` is a step that was ended at its deadline.
        seconds: That it took.
        why: Of an outcome that is not ``passed``.
        tail: The last lines of its log.
        facts: What it found out, where that is more than an outcome.
    """

    name: str
    outcome: Outcome
    seconds: float = 0.0
    why: str = ""
    tail: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


class Writer:
    """Writes records into a folder.

    Args:
        folder: The folder, which is made.
        kept: Where steps leave the files that are brought back.
    """

    def __init__(self, folder: Path, kept: Path) -> None:
        self._folder = folder
        self._kept = kept
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> Path:
        """Where the output of the step under way belongs."""
        return self._folder / RUNNING

    def tail(self) -> str:
        """The last lines of that."""
        try:
            text = self.log.read_bytes()[-MOST_LOG_BYTES:].decode(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-TAIL_LINES:])

    def add(self, record: Record) -> None:
        """Write what a step left, then its log, then its line, each whole."""
        self._write_files()
        log = self.log.read_bytes() if self.log.exists() else b""
        if len(log) > MOST_LOG_BYTES:
            log = log[: MOST_LOG_BYTES // 2] + b"\n[...]\n" + log[-MOST_LOG_BYTES // 2 :]
        self._append(LOGS, f"===== {record.name}: {record.outcome} {record.why}\n".encode() + log + b"\n")
        self._append(RESULTS, json.dumps(asdict(record)).encode() + b"\n")
        self.log.unlink(missing_ok=True)

    def _append(self, name: str, data: bytes) -> None:
        with (self._folder / name).open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _write_files(self) -> None:
        """Pack all files anew, the largest ones last and as far as there is room."""
        paths = [path for path in self._kept.rglob("*") if path.is_file() and path.stat().st_size <= MOST_FILE_BYTES]
        if not paths:
            return
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for path in sorted(paths, key=lambda each: (each.stat().st_size, each)):
                if packed.tell() + path.stat().st_size <= MOST_FILES_BYTES:
                    archive.add(path, path.relative_to(self._kept))
        new = self._folder / f"{FILES}.new"
        new.write_bytes(packed.getvalue())
        new.replace(self._folder / FILES)


def read_records(folder: Path) -> list[Record]:
    """Read the records of a run; a line that is not whole, of a run that was cut off, is left out."""
    *lines, _ = (folder / RESULTS).read_text(encoding="utf-8").split("\n")
    return [Record(**json.loads(line)) for line in lines]


def unpack_files(folder: Path, into: Path) -> None:
    """Unpack what the steps wrote; nothing where no step did."""
    if (folder / FILES).exists():
        with tarfile.open(folder / FILES) as archive:
            archive.extractall(into, filter="data")
