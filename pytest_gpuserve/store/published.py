"""Numbers that others printed: read from ``baselines/<device>/published/<suite>.json``, and chosen by keywords.

A published number is one value without samples. Each is kept in the units of a baseline, beside what was printed,
where that stands, how it was measured, and what is known to be wrong with it.

Schema history:

1. First.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from pytest_gpuserve.errors import BaselineUnusable, UsageProblem
from pytest_gpuserve.store.schema import Count, FileHead, NotNegative, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

SCHEMA: Final = 1

FOLDER: Final = "published"
"""Below the folder of a device."""

UNNAMED: Final = "unnamed"
"""Folder of what was printed of a device that nobody named: it is kept, and chosen for no device."""

Word = str | int | float
"""What a keyword selects by."""

Text = Annotated[str, msgspec.Meta(min_length=1)]
Line = Annotated[int, msgspec.Meta(ge=1)]


class SourceDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where numbers were printed: a document in a GitHub repository.

    Args:
        sha256: Of the text, by whose lines entries are cited.
        revision: The commit, where it is known.
    """

    repository: Text
    path: Text
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    revision: Text | None = None
    note: Text | None = None


class Printed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A throughput as it was printed."""

    throughput: Value
    unit: Text


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was printed of one measurement. What was not printed is left out, never null or 0.

    Args:
        keys: What it is of, and what tells it apart from all others of its file; keywords select by it.
        line: Of the document, in which it stands or begins.
        tool: What measured it.
        load: How.
        schedule: The same for a program: ``closed`` by ``keys["concurrency"]`` users, ``steps`` of users, a ``burst``,
            or ``none`` where no server was loaded.
        lines: Further lines, by what stands there.
        printed: The throughput, which is requests/s in ``values``.
        values: Requests a second, seconds, bytes, shares from 0 to 1; by the names of metrics where there is one.
        breakdown: Parts of the mean latency in seconds.
        counters: As the server counted them.
        answers: Answers by status.
        histogram: Upper edge in seconds and count of each bin.
        settings: What the server and its load were asked for.
        effective: What was really used, where that is known to differ.
        bias: What is known to be wrong with it, in words.
    """

    keys: dict[str, Word]
    line: Line
    tool: Text
    load: Text
    schedule: Literal["closed", "steps", "burst", "none"]
    lines: dict[str, Line] = {}
    printed: Printed | None = None
    values: dict[str, Value] = {}
    breakdown: dict[str, NotNegative] = {}
    counters: dict[str, Count] = {}
    answers: dict[str, Count] = {}
    histogram: list[tuple[NotNegative, Count]] = []
    settings: dict[str, Word] = {}
    effective: dict[str, Word] = {}
    bias: list[Text] = []


class _PublishedFile(msgspec.Struct, forbid_unknown_fields=True):
    schema: int
    document: SourceDocument
    entries: Annotated[list[Record], msgspec.Meta(min_length=1)]
    gpu: Text | None = None


@dataclass(frozen=True)
class PublishedEntry:
    """A record with the device folder that it is in, its document, and how that names the device."""

    device: str
    document: SourceDocument
    record: Record
    gpu: str | None = None

    def __str__(self) -> str:
        """``bert.md line 79 (system='mosec', concurrency=50 ...)``."""
        keys = ", ".join(f"{name}={value!r}" for name, value in self.record.keys.items())
        return f"{self.document.path} line {self.record.line} ({keys})"

    @property
    def provenance(self) -> str:
        """Where it was printed, and how it was measured, in a line."""
        document, record = self.document, self.record
        at = f" at {document.revision}" if document.revision else ""
        return f"{document.repository} {document.path}{at}, line {record.line}; {record.tool}: {record.load}"


@dataclass(frozen=True)
class NothingPublished:
    """There is no entry for this device: why, and which devices have one."""

    reason: str


def suites(folder: Path) -> list[str]:
    """Names of the suites that have published numbers below a folder of baselines, whatever the device."""
    return sorted({path.stem for path in folder.glob(f"*/{FOLDER}/*.json")})


def read_published(folder: Path, suite: str) -> list[PublishedEntry]:
    """Read a suite's published numbers for all devices, by the devices' names. Raises `BaselineUnusable`."""
    # No part of a pattern: a suite may be called anything.
    paths = sorted(path for path in folder.glob(f"*/{FOLDER}/*.json") if path.stem == suite)
    return [entry for path in paths for entry in read_file(path)]


def read_file(path: Path) -> list[PublishedEntry]:
    """Read a file in ``<device>/published``. Raises `BaselineUnusable`, which names file and field."""
    try:
        data = path.read_bytes()
        head = msgspec.json.decode(data, type=FileHead)
        if head.schema != SCHEMA:
            raise BaselineUnusable(
                f"file of published numbers {path} has a schema that this version does not read",
                found=f"schema {head.schema}; this version reads schema {SCHEMA}",
                remedies=["upgrade with `pip install --upgrade pytest-gpuserve`"] if head.schema > SCHEMA else [],
            )
        file = msgspec.json.decode(data, type=_PublishedFile)
    except msgspec.ValidationError as problem:
        reason, _, place = str(problem).partition(" - at `$")
        raise _unusable(path, f"at {place.rstrip('`').lstrip('.') or 'the top'}", reason) from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise _unusable(path, "", str(problem)) from None
    seen: dict[str, int] = {}
    for number, record in enumerate(file.entries):
        problem_of_it = _contradiction(record)
        if problem_of_it:
            raise _unusable(path, f"at entries[{number}]", problem_of_it)
        first = seen.setdefault(json.dumps(record.keys, sort_keys=True), number)
        if first != number:
            raise _unusable(path, f"at entries[{number}].keys", f"the same as entries[{first}].keys")
    device = path.parents[1].name
    return [PublishedEntry(device, file.document, record, file.gpu) for record in file.entries]


def select(
    entries: Sequence[PublishedEntry], device: str, suite: str, wanted: Mapping[str, object]
) -> PublishedEntry | NothingPublished:
    """Choose the entry that keywords describe.

    Args:
        entries: Of a suite, for all devices: what a keyword may be does not depend on where the test is run.

    Raises:
        UsageProblem: There is no such keyword, or no entry anywhere has such a text, or several entries are left.
    """
    _check_words(entries, suite, wanted)
    fitting = [entry for entry in entries if _fits(entry, wanted)]
    here = [entry for entry in fitting if entry.device == device and device != UNNAMED]
    if not here:
        with_ = f" with {_call(wanted)}" if wanted else ""
        others = ", ".join(sorted({entry.device for entry in fitting}))
        there = f"there are: {others}" if others else "nor for any other device"
        return NothingPublished(f"no number was published for {device} in {suite}{with_}; {there}")
    if len(here) > 1:
        raise UsageProblem(
            f"published({_call(wanted)}) describes {len(here)} entries of {suite} for {device}",
            found=_differences(here),
            remedies=["give keywords until one entry is left"],
        )
    return here[0]


def _check_words(entries: Sequence[PublishedEntry], suite: str, wanted: Mapping[str, object]) -> None:
    known = dict.fromkeys(name for entry in entries for name in entry.record.keys)
    for name, value in wanted.items():
        if name not in known:
            raise UsageProblem(
                f"published({name}=...): no entry of {suite} has such a keyword",
                remedies=[f"there are: {', '.join(known)}"],
            )
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise UsageProblem(f"published({name}=...) is a text or a number, not {value!r}")
        values = _values(entries, name)
        # A number may be one of a sweep that was not printed whole; a text that is nowhere is a slip of the pen.
        if isinstance(value, str) and value not in values:
            raise UsageProblem(
                f"published({name}={value!r}): no entry of {suite} has that",
                remedies=[f"there are: {', '.join(map(repr, values))}"],
            )


def _fits(entry: PublishedEntry, wanted: Mapping[str, object]) -> bool:
    return all(name in entry.record.keys and entry.record.keys[name] == value for name, value in wanted.items())


def _differences(entries: Sequence[PublishedEntry]) -> str:
    """What tells entries apart, with its values."""
    names = dict.fromkeys(name for entry in entries for name in entry.record.keys)
    lines = []
    for name in names:
        values = [repr(value) for value in _values(entries, name)]
        if any(name not in entry.record.keys for entry in entries):
            values.append("nothing")
        if len(values) > 1:
            lines.append(f"{name}: {', '.join(values)}")
    return "they differ in\n" + "\n".join(lines)


def _values(entries: Iterable[PublishedEntry], name: str) -> list[Word]:
    values = {entry.record.keys[name] for entry in entries if name in entry.record.keys}
    return sorted(values, key=lambda value: (isinstance(value, str), value))


def _call(wanted: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in wanted.items())


def _contradiction(record: Record) -> str:
    """What cannot be right in a record whose fields are; empty if nothing."""
    if record.schedule == "closed" and type(record.keys.get("concurrency")) is not int:
        return "a closed loop has a whole concurrency in its keys"
    if (record.printed is None) is ("throughput" in record.values):
        return "a throughput is in values and in printed, or in neither"
    return ""


def _unusable(path: Path, where: str, found: str) -> BaselineUnusable:
    return BaselineUnusable(
        " ".join(part for part in (f"file of published numbers {path} is not usable", where) if part),
        found=found,
        remedies=[f"restore the file with `git checkout -- {path}`"],
    )
