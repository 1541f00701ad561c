"""A run against the anchor of its host: what there is to compare with, what comes of it, and how that is said."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.device.rules import HOST_RULES, changes, compare
from pytest_gpuserve.experiment.machine import why_other_than_anchor
from pytest_gpuserve.experiment.worktree import SHOWN_DIGITS
from pytest_gpuserve.gate.anchor import AnchorPoint, AnchorResult, judge_anchor
from pytest_gpuserve.gate.metric import log_cost
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.measure.points import NotMeasured, point
from pytest_gpuserve.measure.yardstick import is_as_fast
from pytest_gpuserve.store.anchor import Anchored, find, is_of, is_since
from pytest_gpuserve.store.schema import yardstick_of
from pytest_gpuserve.units import format_change, format_fraction, format_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuserve.experiment.environment import RunEnvironment
    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.measure.yardstick import Yardstick
    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.store.schema import AnchoredRecord, AnchorRecord, Entry


@dataclass(frozen=True, slots=True)
class Standing:
    """What a baseline says of a metric's anchor here.

    Args:
        anchored: What a run is to be compared with; None where there is nothing, or nothing has come since.
        notes: What a report should say of it.
        other_machine: Why the number of the anchor decides nothing here and now; None where it does, or there is none.
    """

    anchored: Anchored | None = None
    notes: tuple[Reason, ...] = ()
    other_machine: Reason | None = None


@dataclass(frozen=True, slots=True)
class Drift:
    """What the anchor of a metric claims of a run.

    Args:
        metric: Which.
        stored: Its baseline.
        anchored: Its anchor.
        judgement: Against the newest sessions of the baseline.
        claim: Against the anchor: REGRESSED, or INCONCLUSIVE where only its commit can tell.
    """

    metric: Metric
    stored: Stored
    anchored: Anchored
    judgement: Judgement
    claim: Judgement

    @property
    def is_shown(self) -> bool:
        """Whether the anchor's own number claims it."""
        return self.claim.verdict is Verdict.REGRESSED

    @property
    def beside(self) -> str:
        """How a comparison with the anchor's commit is called: the run may have been beside another one too."""
        return f"side by side with the anchor's commit ({named(self.anchored.of)})"


def screened(
    judgement: Judgement,
    stored: Stored | None,
    sessions: Iterable[Session],
    now: Yardstick | None,
    *,
    here: RunEnvironment,
    tolerance: float,
) -> tuple[Judgement, Drift | None]:
    """Ask the anchor of a metric what the newest sessions of its baseline let pass.

    Args:
        judgement: Against those sessions.
        stored: The baseline.
        sessions: Of the run.
        now: How fast the machine is; None of a server that somebody else runs.
        here: The circumstances of the run.
        tolerance: Of the metric.

    Returns:
        The judgement with what is to be said of the anchor, and the drift that it claims, or that only the anchor's
        commit can tell; None where there is none.
    """
    if stored is None or judgement.verdict in {Verdict.MISSING, Verdict.INVALID}:
        return judgement, None
    metric = judgement.metric
    found = standing(metric, stored, here, now)
    judgement = judgement.because(*found.notes)
    if found.anchored is None or judgement.verdict is Verdict.REGRESSED:
        return judgement, None
    if found.other_machine is not None:
        doubt = replace(judgement, verdict=Verdict.INCONCLUSIVE, reasons=(found.other_machine, *found.notes))
        return judgement, Drift(metric, stored, found.anchored, judgement, doubt)
    result = against_anchor(metric, found.anchored, stored, sessions, now, here=here, tolerance=tolerance)
    if result is None or not result.has_drifted:
        return judgement, None
    claim = drifted(result, found.anchored).because(*found.notes)
    return judgement, Drift(metric, stored, found.anchored, judgement, claim)


def standing(metric: Metric, stored: Stored, here: RunEnvironment, now: Yardstick | None) -> Standing:
    """Find the anchor of a metric on this host and device; that there is only one of another is said.

    Args:
        metric: Which.
        stored: The baseline, of the workload of the run.
        here: The circumstances of the run.
        now: As for `screened`.
    """
    entry = stored.entry
    own = find(entry.anchors, here.host.id, metric.name)
    notes = _reason(entry, here.host.id) if own is None else (*_loosened(metric, own), *_reason(entry, here.host.id))
    if own is None:
        return Standing(notes=(*notes, *_of_other_hosts(metric, entry)))
    if not is_since(own, entry):
        return Standing(notes=notes)
    other = incompatible(own.of, here)
    if other:
        text = f"{metric.name}: no drift is judged, its anchor cannot be compared: {'; '.join(other)}"
        return Standing(notes=(*notes, Reason(ReasonKind.NO_DRIFT, text)))
    if now is None or is_as_fast(yardstick_of(own.of.yardstick), now):
        return Standing(own, notes)
    text = f"{metric.name}: {why_other_than_anchor(own.of.yardstick, now)}"
    other_machine = Reason(ReasonKind.MACHINE_SPEED, text)
    # Where the anchor's code is that of the baseline, its commit was asked already.
    return Standing(None if is_of(own.of, entry) else own, notes, other_machine)


def _of_other_hosts(metric: Metric, entry: Entry) -> tuple[Reason, ...]:
    hosts = [
        anchor.host.id
        for anchor in entry.anchors
        if not is_of(anchor, entry) and any(line.metric == metric.name for line in anchor.metrics)
    ]
    if not hosts:
        return ()
    others = ", ".join(map(repr, hosts))
    text = f"{metric.name}: no drift is judged, its anchor was measured on {others}, not here"
    return (Reason(ReasonKind.NO_DRIFT, text),)


def incompatible(anchor: AnchorRecord, here: RunEnvironment) -> tuple[str, ...]:
    """Why the device of an anchor cannot be compared with this one; empty if it can."""
    return compare(msgspec.to_builtins(anchor.device), msgspec.to_builtins(here.device_record())).incompatible


def against_anchor(
    metric: Metric,
    anchored: Anchored,
    stored: Stored,
    sessions: Iterable[Session],
    now: Yardstick | None,
    *,
    here: RunEnvironment,
    tolerance: float,
) -> AnchorResult | None:
    """Compare a run with an anchor; None where the run does not have the metric.

    Args:
        metric: Which.
        anchored: Its anchor.
        stored: The baseline, which has sessions that the anchor does not rest on.
        sessions: Of the run.
        now: How fast the machine is, which is as fast as the anchor's; None of a server that somebody else runs.
        here: The circumstances of the run.
        tolerance: Of the metric.
    """
    try:
        costs = [point(metric, session, tolerance).y for session in sessions]
    except NotMeasured:
        return None
    between = costs_here(metric, stored, here.host.id, now, tolerance)
    return judge_anchor(
        metric, point_of(metric, anchored.line), {here.occasion: costs}, between, most_growth=metric.growth(tolerance)
    )


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


def drifted(result: AnchorResult, anchored: Anchored) -> Judgement:
    """The judgement of a metric that has drifted from its anchor: REGRESSED, and why although it was never told."""
    value = format_value(anchored.line.value, result.metric.unit)
    text = (
        f"drift: the baseline here is the anchor, {value} accepted at {named(anchored.of)} on {anchored.of.at[:10]}."
        f" What has come since adds up to {format_change(result.change)}, in steps that were let pass one by one; the"
        f" tolerance is {format_fraction(result.metric.loss(result.evidence.most_growth))}"
    )
    # With changes on top of a commit it cannot be measured again.
    commit = anchored.of.commit or "" if anchored.of.clean else ""
    return result.judgement().because(Reason(ReasonKind.DRIFT, text, commit=commit[:SHOWN_DIGITS]))


def changes_since_anchor(anchor: AnchorRecord, here: RunEnvironment) -> tuple[str, ...]:
    """What else than the code is not as it was at an anchor of this host: packages, driver, settings."""
    names = sorted({*anchor.software, *here.software})
    return (
        *(
            f"{name} {anchor.software.get(name, 'absent')} -> {here.software.get(name, 'absent')}"
            for name in names
            if anchor.software.get(name) != here.software.get(name)
        ),
        *changes(msgspec.to_builtins(anchor.device), msgspec.to_builtins(here.device_record())),
        *changes(msgspec.to_builtins(anchor.host), msgspec.to_builtins(here.host_record()), HOST_RULES),
    )


def named(anchor: AnchorRecord) -> str:
    """The code of an anchor: ``0123456789ab``."""
    if anchor.commit is None:
        return "code without a commit"
    return anchor.commit[:SHOWN_DIGITS] + ("" if anchor.clean else " with changes")


def _loosened(metric: Metric, anchored: Anchored) -> tuple[Reason, ...]:
    if anchored.line.how != "loosened":
        return ()
    text = f"{metric.name} was loosened at {named(anchored.of)}: {anchored.line.reason}"
    return (Reason(ReasonKind.REMARK, text),)


def _reason(entry: Entry, host: str) -> tuple[Reason, ...]:
    """Why the newest sessions were accepted, where nobody else says it: no anchor of the host was loosened for it."""
    said = {
        line.reason
        for anchor in entry.anchors
        if anchor.host.id == host
        for line in anchor.metrics
        if line.how == "loosened"
    }
    if not entry.reason or entry.reason in said:
        return ()
    return (Reason(ReasonKind.REMARK, f"the baseline was recorded with the reason: {entry.reason}"),)
