"""Baseline files: read with every field checked, changed one at a time, written whole and atomically, and counted."""

from __future__ import annotations

import json
import math
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pytest_gpuserve.builds.checkout import ways_to_restore
from pytest_gpuserve.device.lock import DeviceLock
from pytest_gpuserve.errors import BaselineUnusable, DeviceProblem
from pytest_gpuserve.measure.points import NotMeasured, mean_value
from pytest_gpuserve.store import write_whole
from pytest_gpuserve.store.schema import SCHEMA, Entry, FileHead, Moment, Summary, Value, sessions_of
from pytest_gpuserve.verdict.metric import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpuserve.measure.window import Session

SUMMARY_TOLERANCE = 0.001
"""Largest relative difference of a summary from its samples; beyond it, one of them was edited by hand."""


LONGEST_WAIT_SECONDS: Final = 120.0
"""Longest wait for other workers, each of which writes its file well within a second."""


class _BaselineFile(msgspec.Struct, forbid_unknown_fields=True):
    # Decoded one by one, because msgspec's errors do not name the keys of a dictionary.
    schema: int
    summary: dict[str, dict[str, msgspec.Raw]]
    entries: dict[str, msgspec.Raw]


@dataclass(frozen=True)
class Stored:
    """An entry as in the file, with its sessions read back in the same order."""

    entry: Entry
    sessions: tuple[Session, ...] = field(repr=False)


def read(path: Path) -> dict[str, Stored]:
    """Read a baseline file; one that does not exist has no entries. Raises `BaselineUnusable` with file and field."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise BaselineUnusable(f"baseline file {path} cannot be read", found=str(problem)) from None
    return _parse(data, path)


def _parse(data: bytes, path: Path) -> dict[str, Stored]:
    _check_schema(path, data)
    file = _decode(path, data, _BaselineFile, "")
    entries = {}
    for key, raw in file.entries.items():
        entry = _decode(path, bytes(raw), Entry, f"entries[{key!r}]")
        try:
            entries[key] = Stored(entry, sessions_of(entry))
        except ValueError as problem:
            raise BaselineUnusable(
                f"baseline file {path} is not usable at entries[{key!r}].{problem}", remedies=ways_to_restore(path)
            ) from None
    summary = {
        key: {name: _decode(path, bytes(raw), Value, f"summary[{key!r}].{name}") for name, raw in values.items()}
        for key, values in file.summary.items()
    }
    _check_summary(path, summary, entries)
    return entries


def write(path: Path, entries: Mapping[str, Entry]) -> None:
    """Write a baseline file atomically: a reader, or a crash, sees the old file or the new one, whole.

    A file without entries is removed. Entries that could not be read again are never written.

    Raises:
        BaselineUnusable: The file cannot be written; the old file is unchanged.
    """
    try:
        data = render(entries).encode()
        _parse(data, path)
    except (ValueError, ArithmeticError, BaselineUnusable) as problem:
        raise BaselineUnusable(
            f"baseline file {path} is not written, because it could not be read again", found=str(problem)
        ) from None
    try:
        if not entries:
            path.unlink(missing_ok=True)
            return
        write_whole(path, data)
    except OSError as problem:
        raise BaselineUnusable(
            f"baseline file {path} cannot be written",
            found=str(problem),
            remedies=["give another folder with --baseline-dir=DIR"],
        ) from None


@contextmanager
def changing(path: Path) -> Iterator[dict[str, Entry]]:
    """Give the entries of a file to a block, which may change them, and write them at its end.

    No other process changes baselines meanwhile: another worker may record too. One lock serves all baselines of the
    machine, because a change is short, and no lock files stay in projects.

    Raises:
        BaselineUnusable: The file cannot be read or written, or other processes held the lock for too long; the file
            is unchanged.
    """
    lock = DeviceLock("baselines")
    try:
        held = lock.acquire(wait_seconds=LONGEST_WAIT_SECONDS, on_wait=lambda *_: None)
    except DeviceProblem as problem:
        raise BaselineUnusable(
            f"baseline file {path} is not written: {problem.summary}", found=problem.found, looked=problem.looked
        ) from None
    with held:
        entries = {key: stored.entry for key, stored in read(path).items()}
        yield entries
        write(path, entries)


def render(entries: Mapping[str, Entry]) -> str:
    """Write entries as the text of a file: summary first, sorted keys, one metric or start a line.

    Raises:
        ValueError: A number is NaN or infinite, or times do not fit their counts.
        ZeroDivisionError: A start took no time.
    """
    summary = {key: summarise(sessions_of(entries[key])) for key in sorted(entries)}
    plain = {key: msgspec.to_builtins(entries[key]) for key in sorted(entries)}
    return _lines({"schema": SCHEMA, "summary": summary, "entries": plain}, "") + "\n"


def summarise(sessions: Sequence[Session]) -> dict[str, float]:
    """Metrics of average sessions, to four digits, without unknown ones."""
    values = {}
    for name, metric in METRICS.items():
        with suppress(NotMeasured):
            values[name] = float(f"{mean_value(metric, sessions):.4g}")
    return values


def _check_schema(path: Path, data: bytes) -> None:
    head = _decode(path, data, FileHead, "")
    if head.schema > SCHEMA:
        raise BaselineUnusable(
            f"baseline file {path} was written by a newer pytest-gpuserve",
            found=f"schema {head.schema}; this version reads schema {SCHEMA}",
            remedies=["upgrade with `pip install --upgrade pytest-gpuserve`"],
        )
    if head.schema < SCHEMA:
        raise BaselineUnusable(
            f"baseline file {path} has a schema that this version no longer reads",
            found=f"schema {head.schema}; this version reads schema {SCHEMA}",
            remedies=[f"migrate by recording again: remove {path} and run pytest with --baseline-update"],
        )


def _decode(path: Path, data: bytes, kind: Any, where: str) -> Any:  # noqa: ANN401 -- msgspec decides by kind
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as problem:
        # msgspec ends its message with "- at `$.field[0]...`", or leaves it out at the top.
        reason, _, field_path = str(problem).partition(" - at `$")
        place = (where + field_path.rstrip("`")).lstrip(".") or "the top"
        raise BaselineUnusable(
            f"baseline file {path} is not usable at {place}", found=reason, remedies=ways_to_restore(path)
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        # Only in the whole file is the position of msgspec's byte known.
        byte = re.search(r"\(byte (\d+)\)", str(problem)) if not where else None
        line = f", line {data[: int(byte[1])].count(10) + 1}" if byte else ""
        raise BaselineUnusable(
            f"baseline file {path} is not whole JSON{' at ' + where if where else ''}",
            found=f"{problem}{line} ({len(data)} bytes)",
            remedies=ways_to_restore(path),
        ) from None


def _check_summary(path: Path, summary: Summary, entries: Mapping[str, Stored]) -> None:
    if set(summary) != set(entries):
        odd = sorted(set(summary) ^ set(entries))
        raise BaselineUnusable(
            f"baseline file {path}: summary and entries do not name the same tests",
            found=", ".join(odd),
            remedies=ways_to_restore(path),
        )
    for key, stored in entries.items():
        computed = summarise(stored.sessions)
        for name in sorted(set(computed) | set(summary[key])):
            said, is_ = summary[key].get(name), computed.get(name)
            if said is None or is_ is None or not math.isclose(said, is_, rel_tol=SUMMARY_TOLERANCE):
                raise BaselineUnusable(
                    f"baseline file {path}: summary[{key!r}].{name} disagrees with the samples below it",
                    found=f"the summary says {said}, the samples give {is_}",
                    remedies=["a baseline is recorded, never edited", *ways_to_restore(path)],
                )


def _lines(value: Any, indent: str) -> str:  # noqa: ANN401 -- any JSON value
    """JSON with one field a line, but an object of a list, such as a start, on one line if it has no list itself."""
    deeper = indent + " "
    if isinstance(value, dict) and value:
        # The top level keeps its order, summary first; below, keys are sorted.
        keys = list(value) if not indent else sorted(value)
        body = ",\n".join(f"{deeper}{_plain(key)}: {_lines(value[key], deeper)}" for key in keys)
        return f"{{\n{body}\n{indent}}}"
    if isinstance(value, list) and value:
        body = ",\n".join(deeper + (_plain(item) if _is_flat(item) else _lines(item, deeper)) for item in value)
        return f"[\n{body}\n{indent}]"
    return _plain(value)


def _is_flat(value: Any) -> bool:  # noqa: ANN401 -- any JSON value
    return isinstance(value, dict) and not any(isinstance(inner, list) for inner in value.values())


def _plain(value: Any) -> str:  # noqa: ANN401 -- any JSON value
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


# Fields that are not named here are skipped, which is fast.
class _Session(msgspec.Struct):
    at: Moment


class _Entry(msgspec.Struct):
    sessions: list[_Session]


class _FileOutline(msgspec.Struct):
    entries: msgspec.Raw = msgspec.Raw(b"{}")
    summary: msgspec.Raw = msgspec.Raw()


def _outline(data: bytes) -> dict[str, _Entry]:
    """The entries of a baseline file; empty for a file of another kind, without a summary. Raises msgspec's errors."""
    outline = msgspec.json.decode(data, type=_FileOutline)
    return msgspec.json.decode(outline.entries, type=dict[str, _Entry]) if bytes(outline.summary) else {}


def same_recording(data: bytes, key: str) -> Callable[[bytes], bool]:
    """Make a function that tells whether another version of a baseline file has the same recording of an entry.

    A recording is the same if its sessions began at the same times. Their form, and the rest of an entry, may change: a
    file that is rewritten for another schema has the same recordings.

    Args:
        data: The bytes of the file.
        key: Key of the entry, which the file has.
    """
    now = _began(data, key)
    return lambda other: bool(now) and _began(other, key) == now


def _began(data: bytes, key: str) -> list[str]:
    """Begin of each session of an entry; empty if the file cannot be read, or lacks the entry."""
    try:
        entry = _outline(data).get(key)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    return [] if entry is None else [session.at for session in entry.sessions]


def stock_of(folder: Path) -> tuple[int, int]:
    """Count the entries in ``baselines/<device>``, which may not exist, and its files that cannot be read.

    Files of another kind do not count.
    """
    entries = unreadable = 0
    for path in folder.rglob("*.json"):
        try:
            entries += len(_outline(path.read_bytes()))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            unreadable += 1
    return entries, unreadable
