"""What a run brings back, wherever it is cut: each step's result and log, and the files that the steps wrote.

A lent machine gives back no more than eight files of 16 MiB. Standard library alone.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

RESULTS: Final = "results.jsonl"
"""A record a line, as soon as its step has ended, and a file a line, as soon as it is seen; of each the last counts."""

RUNNING: Final = "running.log"
"""Of the step that is under way: a line with its name, and with how many records there were, and all it has printed."""

MOST_BYTES: Final = 1 << 19
"""Of a longer log the end is kept; a larger file stays behind."""

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
        folder.mkdir(parents=True, exist_ok=True)
        kept.mkdir(parents=True)
        # Of a line that is not whole the rest would become part of the next one.
        (folder / RESULTS).write_text("".join(f"{json.dumps(line)}\n" for line in _lines(folder)), encoding="utf-8")
        for name, text in read_files(folder).items():
            (kept / name).parent.mkdir(parents=True, exist_ok=True)
            (kept / name).write_text(text, encoding="utf-8")
        self._seen = self._states()
        if self.log.exists():
            for record in list(read_records(folder).values())[-1:]:
                self.add(record)

    def begin(self, name: str) -> None:
        """Say which step is under way."""
        self.log.write_text(f"{name} {sum('name' in line for line in _lines(self._folder))}\n", encoding="utf-8")

    def add(self, record: Record) -> None:
        """Write what a step left, and then its line with its log, whole."""
        self.save_files()
        self._append(asdict(replace(record, log=_read_log(self.log))))
        self.log.unlink(missing_ok=True)

    def save_files(self) -> None:
        """Write files that have changed since the last time."""
        states = self._states()
        for path, state in states.items() - self._seen.items():
            if state[0] <= MOST_BYTES:
                name = str(path.relative_to(self._kept))
                self._append({"file": name, "text": path.read_text(encoding="utf-8", errors="replace")})
        self._seen = states

    def _states(self) -> dict[Path, tuple[int, int]]:
        paths = [path for path in self._kept.rglob("*") if path.is_file()]
        return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}

    def _append(self, line: dict[str, Any]) -> None:
        with (self._folder / RESULTS).open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _lines(folder: Path) -> list[dict[str, Any]]:
    results = folder / RESULTS
    return [json.loads(line) for line in results.read_text("utf-8").split("\n")[:-1]] if results.exists() else []


def _read_log(log: Path) -> str:
    return log.read_bytes()[-MOST_BYTES:].decode(errors="replace") if log.exists() else ""


def read_records(folder: Path) -> dict[str, Record]:
    """Read each step's last record, the newest one last; a step in which a run was cut has one, too."""
    records = [Record(**line) for line in _lines(folder) if "name" in line]
    if (folder / RUNNING).exists():
        name, _, after = (folder / RUNNING).read_text(errors="replace").partition("\n")[0].partition(" ")
        if after == str(len(records)):
            records.append(Record(name, "cut", 0.0, "the run was ended in it", _read_log(folder / RUNNING)))
    found: dict[str, Record] = {}
    for record in records:
        found.pop(record.name, None)
        found[record.name] = record
    return found


def read_files(folder: Path) -> dict[str, str]:
    """Read the text of each file that the steps wrote."""
    return {line["file"]: line["text"] for line in _lines(folder) if "file" in line}
