"""What a file holds of a search for a capacity: every rate that was tried, a line each."""

from __future__ import annotations

from typing import Annotated

import msgspec

from pytest_gpuserve.measure.capacity import Finding, Objective, Probe, Search
from pytest_gpuserve.store.fields import Count, NotNegative, Positive, rounded


class ProbeRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A ``Probe``; texts that it does not have are left out."""

    rate: Positive
    finding: Finding
    seconds: NotNegative
    requests: Count
    slow: Count
    effective: NotNegative
    latency: NotNegative | None
    reason: str = ""
    client: str = ""


class SearchRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ``Search``."""

    quantile: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    objective_seconds: Positive
    probes: Annotated[list[ProbeRecord], msgspec.Meta(min_length=1)]


def search_record(search: Search | None) -> SearchRecord | None:
    """Turn a search into its record; None where there is none, or it tried nothing."""
    if search is None or not search.probes:
        return None
    objective = search.objective
    return SearchRecord(objective.quantile, rounded(objective.seconds), [_probe_record(each) for each in search.probes])


def search_of(record: SearchRecord | None, path: str) -> Search | None:
    """Read a search back.

    Args:
        record: Its record; None where there is none.
        path: Where it stands, for the error.

    Raises:
        ValueError: A probe has more slow or more independent requests than it has requests; the text begins with its
            path.
    """
    if record is None:
        return None
    for number, probe in enumerate(record.probes):
        if probe.slow > probe.requests or probe.effective > probe.requests:
            raise ValueError(
                f"{path}.probes[{number}] has {probe.requests} requests, of which {probe.slow} are slow and"
                f" {probe.effective:g} independent"
            )
    probes = tuple(Probe(**msgspec.structs.asdict(probe)) for probe in record.probes)
    return Search(Objective(record.quantile, record.objective_seconds), probes)


def _probe_record(probe: Probe) -> ProbeRecord:
    return ProbeRecord(
        rate=rounded(probe.rate),
        finding=probe.finding,
        seconds=rounded(probe.seconds),
        requests=probe.requests,
        slow=probe.slow,
        # Rounded, it may not come to more than there are.
        effective=min(rounded(probe.effective), float(probe.requests)),
        latency=None if probe.latency is None else rounded(probe.latency),
        reason=probe.reason,
        client=probe.client,
    )
