"""The anchors of a baseline entry: found, put in order, checksummed, and checked when they are read.

An anchor says what a metric was when it was last accepted deliberately. The sessions of an entry are replaced by every
update, so that many small steps for the worse are each within the tolerance of the one before; the anchor stays, and is
what they add up against. Of older anchors no samples are kept that they could be checked against, so each line has a
checksum. It is no secret: it tells an edit or a bad merge, not somebody who forges a file, whom a review has to find.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.device.rules import compare
from pytest_gpuserve.gate.metric import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.store.schema import AnchoredRecord, AnchorRecord, DeviceRecord, Entry, MoveRecord

MOST_HOSTS: Final = 4
"""Hosts whose anchors an entry keeps: those that recorded it last."""

MOST_MOVES: Final = 20
"""Moves of anchors that an entry keeps: the last ones."""


@dataclass(frozen=True, slots=True)
class Anchored:
    """The anchor of one metric: its line, and the anchor that holds it."""

    line: AnchoredRecord
    of: AnchorRecord


def find(anchors: Iterable[AnchorRecord], host: str, metric: str) -> Anchored | None:
    """The anchor of a metric on a host; None where it has none there."""
    for anchor in anchors:
        if anchor.host.id == host:
            for line in anchor.metrics:
                if line.metric == metric:
                    return Anchored(line, anchor)
    return None


def is_of(anchor: AnchorRecord, entry: Entry) -> bool:
    """Whether an anchor and the sessions of an entry are of one build on one device: no other has come between them.

    Builds that no commit names, or that had uncommitted changes, are one only if they were recorded at once.
    """
    last = entry.sessions[-1]
    if anchor.at == last.occasion:
        return True
    of_code = anchor.clean and entry.clean and anchor.code is not None and anchor.code == entry.code
    return of_code and anchor.software == last.software and is_same_device(anchor.device, last.device)


def is_since(anchored: Anchored, entry: Entry) -> bool:
    """Whether an entry holds more of an anchor's host than the sessions that the anchor rests on, or not all of them.

    What the code does not determine may change while the code stays: a remote server, weights outside of git.
    """
    held = [record.occasion for record in entry.sessions if record.host.id == anchored.of.host.id]
    whole = anchored.of.at in held and len(held) == anchored.line.sessions
    return not (whole and is_of(anchored.of, entry))


def is_same_device(old: DeviceRecord, new: DeviceRecord) -> bool:
    """Whether nothing tells two devices apart that could move a number: two cards of a kind are the same."""
    found = compare(msgspec.to_builtins(old), msgspec.to_builtins(new))
    return not (found.incompatible or found.warnings)


def replaced(anchors: Iterable[AnchorRecord], new: Sequence[AnchorRecord], host: str) -> list[AnchorRecord]:
    """The anchors of an entry after a host recorded new ones, checksummed: each metric of a host once."""
    taken = {line.metric for anchor in new for line in anchor.metrics}
    others = [anchor for anchor in anchors if anchor.host.id != host]
    own = [
        msgspec.structs.replace(anchor, metrics=[line for line in anchor.metrics if line.metric not in taken])
        for anchor in anchors
        if anchor.host.id == host
    ]
    kept = set(list(dict.fromkeys(anchor.host.id for anchor in others))[-(MOST_HOSTS - 1) :])
    return [*(anchor for anchor in others if anchor.host.id in kept), *_joined([*own, *new])]


def _joined(anchors: Iterable[AnchorRecord]) -> list[AnchorRecord]:
    """The same with one anchor of each place and code, none empty, in the order of their recording; checksummed."""
    joined: list[AnchorRecord] = []
    for anchor in sorted(anchors, key=lambda one: one.at):
        place = msgspec.structs.replace(anchor, metrics=[])
        same = [one for one in joined if msgspec.structs.replace(one, metrics=[]) == place]
        if same:
            joined.remove(same[0])
        joined.append(msgspec.structs.replace(anchor, metrics=[*(same[0].metrics if same else ()), *anchor.metrics]))
    return [checksummed(anchor) for anchor in joined if anchor.metrics]


def checksummed(anchor: AnchorRecord) -> AnchorRecord:
    """The same with its metrics in order and a checksum on each."""
    lines = sorted(anchor.metrics, key=lambda line: line.metric)
    return msgspec.structs.replace(
        anchor, metrics=[msgspec.structs.replace(line, seal=_seal(anchor, line)) for line in lines]
    )


def check(anchors: Sequence[AnchorRecord], moves: Sequence[MoveRecord]) -> None:
    """Check what the types of the fields cannot.

    Raises:
        ValueError: A metric is unknown, in another unit, or anchored twice on a host, its spread does not fit its
            sessions, or its seal the line; the text begins with the field's path within the entry.
    """
    seen: set[tuple[str, str]] = set()
    for number, anchor in enumerate(anchors):
        for place, line in enumerate(anchor.metrics):
            wrong = _wrong(anchor, line)
            if (anchor.host.id, line.metric) in seen:
                wrong = f"metric is {line.metric!r} once more of the host {anchor.host.id!r}"
            if wrong:
                raise ValueError(f"anchors[{number}].metrics[{place}].{wrong}")
            seen.add((anchor.host.id, line.metric))
    for number, move in enumerate(moves):
        if move.metric not in METRICS:
            raise ValueError(f"moves[{number}].metric is {move.metric!r}, which this version does not know")


def _wrong(anchor: AnchorRecord, line: AnchoredRecord) -> str:
    """What is wrong with a line by itself, its field first; empty if nothing is."""
    metric = METRICS.get(line.metric)
    if metric is None:
        return f"metric is {line.metric!r}, which this version does not know"
    if line.unit != metric.unit:
        return f"unit is {line.unit!r}, but that of {metric.name} is {metric.unit!r}"
    if (line.sd is None) is not (line.sessions == 1):
        return f"sd is {line.sd}, which does not fit {line.sessions} sessions"
    if line.occasions > line.sessions:
        return f"occasions is {line.occasions}, but there are {line.sessions} sessions"
    if line.seal != _seal(anchor, line):
        return "seal does not fit the rest: an anchor is recorded, with --reason where it loosens, and never edited"
    return ""


def _seal(anchor: AnchorRecord, line: AnchoredRecord) -> str:
    of = msgspec.structs.replace(anchor, metrics=[])
    said = msgspec.json.encode([of, msgspec.structs.replace(line, seal="")], order="deterministic")
    return hashlib.sha256(said).hexdigest()[:12]
