"""What a recording does to the anchors of its baseline: set, tighten, loosen for a reason, or leave them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.builds.worktree import SHOWN_DIGITS
from pytest_gpuserve.device.rules import compare
from pytest_gpuserve.experiment.machine import why_other_than_anchor
from pytest_gpuserve.gate.anchor import AnchorPoint, judge_anchor
from pytest_gpuserve.gate.metric import log_cost
from pytest_gpuserve.measure.points import NotMeasured, point
from pytest_gpuserve.measure.yardstick import Yardstick, is_as_fast
from pytest_gpuserve.store.anchor import MOST_MOVES, Anchored, find, is_of, is_since, replaced
from pytest_gpuserve.store.baseline import Stored
from pytest_gpuserve.store.schema import (
    AnchoredRecord,
    AnchorRecord,
    MoveRecord,
    rounded,
    session_of,
    yardstick_of,
    yardstick_record,
)
from pytest_gpuserve.units import format_change, format_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuserve.experiment.environment import RunEnvironment
    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.store.schema import Entry, How


@dataclass(frozen=True, slots=True)
class GatedMetric:
    """A metric that a test compares with its baseline.

    Args:
        metric: Which.
        tolerance: How much worse its value may be, as a fraction of it.
    """

    metric: Metric
    tolerance: float


@dataclass(frozen=True, slots=True)
class AnchorUpdate:
    """The anchors of an entry after a recording.

    Args:
        anchors: All of them.
        moves: Of them, the last ones.
        lines: What became of each metric, for people.
    """

    anchors: list[AnchorRecord]
    moves: list[MoveRecord]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Decision:
    """What becomes of one metric's anchor: a new one, a move from the old one, and the words for it."""

    anchor: AnchorRecord | None
    move: MoveRecord | None
    text: str


class AnchorUpdater:
    """A recording with all that decides about its anchors.

    Args:
        old: The baseline before it; None where there was none.
        entry: The baseline after it, as far as it was measured.
        here: The circumstances, those of the entry's newest sessions.
        reason: Why metrics may be loosened; None where they may not.
        pooled: Whether the entry's older sessions are of the same build.
        is_here: Whether the server ran on this machine, whose yardstick is known.
    """

    def __init__(
        self,
        old: Stored | None,
        entry: Entry,
        here: RunEnvironment,
        *,
        reason: str | None,
        pooled: bool,
        is_here: bool = True,
    ) -> None:
        self._here = here
        self._host = here.host.id
        self._reason = reason
        self._pooled = pooled
        self._old = old
        # Anchors are of the entry's workload; those of another one are good for nothing but the list of moves.
        self._fits = old is not None and old.entry.workload == entry.workload
        self._new = Stored(entry, tuple(session_of(record) for record in entry.sessions))
        own = [
            session.yardstick
            for session, record in zip(self._new.sessions, entry.sessions, strict=True)
            if record.occasion == here.occasion and record.host.id == self._host
        ]
        # None of a server that somebody else runs: its machine is not this one.
        self._now = Yardstick.pooled(own) if is_here else None

    def update(self, gated: Iterable[GatedMetric]) -> AnchorUpdate:
        """Decide about each metric that is compared; those of other hosts and other metrics stay as they are.

        Raises:
            ValueError: A session of the new entry cannot be read back.
        """
        decisions = [decision for each in gated if (decision := self._decide(each)) is not None]
        anchors = self._old.entry.anchors if self._old is not None and self._fits else []
        moves = [] if self._old is None else self._old.entry.moves
        return AnchorUpdate(
            anchors=replaced(anchors, [each.anchor for each in decisions if each.anchor is not None], self._host),
            moves=[*moves, *(each.move for each in decisions if each.move is not None)][-MOST_MOVES:],
            lines=tuple(each.text for each in decisions),
        )

    def _decide(self, gated: GatedMetric) -> _Decision | None:
        """What becomes of a metric; None where it was not measured well enough to say."""
        metric = gated.metric
        occasion = self._here.occasion
        every = costs_here(metric, self._new, self._host, None, gated.tolerance)
        if occasion not in every:
            return None
        # Those of this run always: of a machine whose speed varies none may be as fast as they are on average.
        now = {**costs_here(metric, self._new, self._host, self._now, gated.tolerance), occasion: every[occasion]}
        own = None if self._old is None else find(self._old.entry.anchors, self._host, metric.name)
        before = self._before(gated)
        anchored = own or self._implied(metric, before)
        why = self._why_not_comparable(anchored)
        if anchored is None or why:
            return self._set(metric, now, anchored, why)
        if self._now is not None and not is_as_fast(yardstick_of(anchored.of.yardstick), self._now):
            return self._at_another_speed(metric, anchored, own, before, now)
        return self._compared(gated, anchored, own, before, now)

    def _compared(
        self,
        gated: GatedMetric,
        anchored: Anchored,
        own: Anchored | None,
        before: Mapping[str, Sequence[float]],
        now: Mapping[str, Sequence[float]],
    ) -> _Decision:
        """What becomes of a metric whose anchor is of a machine as fast as this one."""
        metric = gated.metric
        since = self._old is not None and is_since(anchored, self._old.entry)
        # This run alone, as where a recording is refused: what it is pooled with was judged when it came.
        new = {self._here.occasion: now[self._here.occasion]}
        # The anchor is not asked once more how much its own sessions vary.
        between = before if since else {}
        result = judge_anchor(
            metric, point_of(metric, anchored.line), new, between, most_growth=metric.growth(gated.tolerance)
        )
        only_adds = not since and self._adds_to(anchored, now)
        if only_adds and not (result.is_beyond or result.has_improved):
            return self._known_better(metric, anchored, now)
        text = _changed(metric, before, now)
        was = f"{format_value(anchored.line.value, metric.unit)} of {named(anchored.of)}"
        if result.has_improved:
            return self._moved(anchored, _line(metric, AnchorPoint.of(now), "tightened", ""), f"{text}, tightened", was)
        if self._reason and result.has_drifted:
            line = _line(metric, AnchorPoint.of(now), "loosened", self._reason)
            return self._moved(anchored, line, f"{text}, loosened: {' '.join(self._reason.split())}", was)
        stays = "within tolerance"
        if result.is_beyond:
            stays = "worse than the tolerance" if result.has_drifted else "worse than the tolerance, but not surely"
        elif -result.evidence.estimate > result.evidence.too_much:
            stays = "not shown to be better"
        kept = None if own else msgspec.structs.replace(anchored.of, metrics=[anchored.line])
        return _Decision(kept, None, f"{text}, {stays}, anchor stays at {was}")

    def _at_another_speed(
        self,
        metric: Metric,
        anchored: Anchored,
        own: Anchored | None,
        before: Mapping[str, Sequence[float]],
        now: Mapping[str, Sequence[float]],
    ) -> _Decision:
        """On a machine of another speed an anchor moves for what somebody says, and never for the machine."""
        assert self._now is not None
        text = f"{_changed(metric, before, now)}; {why_other_than_anchor(anchored.of.yardstick, self._now)}"
        was = f"{format_value(anchored.line.value, metric.unit)} of {named(anchored.of)}"
        if is_of(anchored.of, self._new.entry):
            # The same build: what it is at another speed is no better and no worse.
            line = _line(metric, AnchorPoint.of(now), anchored.line.how, anchored.line.reason)
            return _Decision(self._anchor(line), None, f"{text}, anchor of the same code set for this speed")
        if self._reason:
            line = _line(metric, AnchorPoint.of(now), "loosened", self._reason)
            return self._moved(anchored, line, f"{text}, accepted: {' '.join(self._reason.split())}", was)
        kept = None if own else msgspec.structs.replace(anchored.of, metrics=[anchored.line])
        return _Decision(kept, None, f"{text}, anchor stays at {was}")

    def _before(self, gated: GatedMetric) -> Mapping[str, Sequence[float]]:
        """What the old sessions of this host and workload say."""
        if self._old is None or not self._fits:
            return {}
        return costs_here(gated.metric, self._old, self._host, self._now, gated.tolerance)

    def _adds_to(self, anchored: Anchored, now: Mapping[str, Sequence[float]]) -> bool:
        """Whether the sessions of this run come to all those of an anchor, which are of the same build."""
        # An anchor that followed the newest sessions while the oldest are dropped would creep with them.
        return self._pooled and sum(map(len, now.values())) == anchored.line.sessions + len(now[self._here.occasion])

    def _why_not_comparable(self, anchored: Anchored | None) -> str:
        """Why there is no anchor that this can be compared with; empty if there is, and for a first recording."""
        if self._old is None:
            return ""
        if not self._fits:
            then, today = self._old.entry.workload, self._new.entry.workload
            names = sorted(name for name in {*then, *today} if then.get(name) != today.get(name))
            return f"another workload: {', '.join(names)}"
        if anchored is not None:
            other = incompatible(anchored.of, self._here)
            return f"another device: {'; '.join(other)}" if other else ""
        recorded = any(record.host.id == self._host for record in self._old.entry.sessions)
        if not recorded:
            return f"the first recording on host {self._host!r}"
        alike = self._now is None or self._yardstick_before().rates
        return "the first time that it is compared" if alike else "the first recording by a machine of this speed"

    def _yardstick_before(self) -> Yardstick:
        """That of the old sessions of this host which were measured by a machine as fast as this one."""
        assert self._old is not None
        return Yardstick.pooled(
            session.yardstick
            for session, record in zip(self._old.sessions, self._old.entry.sessions, strict=True)
            if record.host.id == self._host and (self._now is None or is_as_fast(session.yardstick, self._now))
        )

    def _implied(self, metric: Metric, before: Mapping[str, Sequence[float]]) -> Anchored | None:
        """The anchor of an entry that has none: what its sessions of this host say."""
        if self._old is None or not before:
            return None
        entry = self._old.entry
        last = [record for record in entry.sessions if record.host.id == self._host][-1]
        line = _line(metric, AnchorPoint.of(before), "recorded", "")
        anchor = AnchorRecord(
            at=last.occasion,
            commit=entry.commit,
            clean=entry.clean,
            code=entry.code,
            host=last.host,
            device=last.device,
            software=last.software,
            metrics=[line],
            yardstick=yardstick_record(self._yardstick_before()),
        )
        return Anchored(line, anchor)

    def _set(self, metric: Metric, now: Mapping[str, Sequence[float]], own: Anchored | None, why: str) -> _Decision:
        """A first anchor, or one after which nothing can be compared any more."""
        line = _line(metric, AnchorPoint.of(now), "recorded", why)
        told = f"{metric.name} {format_value(line.value, metric.unit)}, anchor set here"
        text = f"{told}: {why}" if why else told
        return _Decision(self._anchor(line), None if own is None else self._move(own, line), text)

    def _known_better(self, metric: Metric, anchored: Anchored, now: Mapping[str, Sequence[float]]) -> _Decision:
        """The same anchor from more sessions of its build, of which none was far from it."""
        line = _line(metric, AnchorPoint.of(now), anchored.line.how, anchored.line.reason)
        text = (
            f"{metric.name} {format_value(line.value, metric.unit)}, the anchor of {named(anchored.of)} from"
            f" {line.sessions} sessions"
        )
        return _Decision(msgspec.structs.replace(anchored.of, metrics=[line]), None, text)

    def _moved(self, anchored: Anchored, line: AnchoredRecord, text: str, was: str) -> _Decision:
        return _Decision(self._anchor(line), self._move(anchored, line), f"{text} (its anchor was {was})")

    def _anchor(self, line: AnchoredRecord) -> AnchorRecord:
        entry = self._new.entry
        return AnchorRecord(
            at=self._here.occasion,
            commit=entry.commit,
            clean=entry.clean,
            code=entry.code,
            host=self._here.host_record(),
            device=self._here.device_record(),
            software=dict(self._here.software),
            metrics=[line],
            yardstick={} if self._now is None else yardstick_record(self._now),
        )

    def _move(self, anchored: Anchored, line: AnchoredRecord) -> MoveRecord:
        return MoveRecord(
            at=self._here.occasion,
            commit=self._new.entry.commit,
            host=self._host,
            how=line.how,
            metric=line.metric,
            new=line.value,
            old=anchored.line.value,
            old_commit=anchored.of.commit,
            reason=line.reason,
        )


def _line(metric: Metric, anchor: AnchorPoint, how: How, reason: str) -> AnchoredRecord:
    return AnchoredRecord(
        metric=metric.name,
        value=rounded(metric.value_at(anchor.y)),
        unit=metric.unit,
        sessions=anchor.sessions,
        occasions=anchor.occasions,
        how=how,
        # Whoever puts it into an entry seals it, with all that stands around it.
        seal="",
        sd=None if anchor.sd is None else float(f"{anchor.sd:.3g}"),
        reason=reason,
    )


def _changed(metric: Metric, before: Mapping[str, Sequence[float]], now: Mapping[str, Sequence[float]]) -> str:
    """``throughput 812/s -> 931/s (+14.7 %)``; without what it was where this host had not recorded it."""
    value = metric.value_at(AnchorPoint.of(now).y)
    if not before:
        return f"{metric.name} {format_value(value, metric.unit)}"
    was = metric.value_at(AnchorPoint.of(before).y)
    return (
        f"{metric.name} {format_value(was, metric.unit)} -> {format_value(value, metric.unit)}"
        f" ({format_change(value / was - 1)})"
    )


def incompatible(anchor: AnchorRecord, here: RunEnvironment) -> tuple[str, ...]:
    """Why the device of an anchor cannot be compared with this one; empty if it can."""
    return compare(msgspec.to_builtins(anchor.device), msgspec.to_builtins(here.device_record())).incompatible


def costs_here(
    metric: Metric, stored: Stored, host: str, now: Yardstick | None, tolerance: float
) -> Mapping[str, Sequence[float]]:
    """Log costs of the stored sessions of a host by occasion; none where one of them does not have the metric.

    Args:
        metric: Which.
        stored: The baseline.
        host: Whose sessions.
        now: Sessions count that were measured by a machine as fast as this; None where all do.
        tolerance: Of the metric.
    """
    costs: dict[str, list[float]] = {}
    for session, record in zip(stored.sessions, stored.entry.sessions, strict=True):
        if record.host.id == host and (now is None or is_as_fast(session.yardstick, now)):
            try:
                costs.setdefault(record.occasion, []).append(point(metric, session, tolerance).y)
            except NotMeasured:
                return {}
    return costs


def point_of(metric: Metric, line: AnchoredRecord) -> AnchorPoint:
    """An anchor on the scale on which it is judged."""
    return AnchorPoint(log_cost(metric, line.value), line.sd, line.sessions, line.occasions)


def named(anchor: AnchorRecord) -> str:
    """The code of an anchor: ``0123456789ab``."""
    if anchor.commit is None:
        return "code without a commit"
    return anchor.commit[:SHOWN_DIGITS] + ("" if anchor.clean else " with changes")
