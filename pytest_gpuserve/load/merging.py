"""Makes one report of those of the engines that share a load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.load.durations import Durations
from pytest_gpuserve.load.wire import Answers, Tick

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def merge_ticks(ticks: Sequence[Tick]) -> Tick:
    """Make one tick of those that the engines of a load report for the same time; exact, whatever their order.

    It is as long as they are on average: where clocks went apart, what engines did is still that of one tick each, and
    not of the time from the first one's begin to the last one's end. Only at the end of a load it lasts as long as the
    longest. Only of an error's sample the first engine's is kept.

    Raises:
        ValueError: There are none, or their numbers differ.
    """
    if len(ticks) == 1:
        return ticks[0]
    numbers = {tick.number for tick in ticks}
    if len(numbers) != 1:
        raise ValueError(f"ticks of one number belong together, not of {sorted(numbers)}")
    ends = [tick.end_ns for tick in ticks]
    samples: dict[str, str] = {}
    for tick in ticks:
        for kind, sample in tick.error_samples.items():
            samples.setdefault(kind, sample)
    return Tick(
        number=ticks[0].number,
        begin_ns=sum(tick.begin_ns for tick in ticks) // len(ticks),
        end_ns=max(ends) if any(tick.last for tick in ticks) else sum(ends) // len(ends),
        requests=sum(tick.requests for tick in ticks),
        latency=Durations.pooled(tick.latency for tick in ticks),
        service=Durations.pooled(tick.service for tick in ticks),
        lag=Durations.pooled(tick.lag for tick in ticks),
        first_token=Durations.pooled(tick.first_token for tick in ticks),
        between_tokens=Durations.pooled(tick.between_tokens for tick in ticks),
        tokens=sum(tick.tokens for tick in ticks),
        due=sum(tick.due for tick in ticks),
        sent=sum(tick.sent for tick in ticks),
        held=sum(tick.held for tick in ticks),
        errors=added(tick.errors for tick in ticks),
        error_samples=samples,
        answers=_joined(answer for tick in ticks for answer in tick.answers),
        unchecked=sum(tick.unchecked for tick in ticks),
        in_flight=sum(tick.in_flight for tick in ticks),
        in_flight_ns=sum(tick.in_flight_ns for tick in ticks),
        failed_ns=sum(tick.failed_ns for tick in ticks),
        opening=sum(tick.opening for tick in ticks),
        oldest_opening_ns=max(tick.oldest_opening_ns for tick in ticks),
        cpu_ns=sum(tick.cpu_ns for tick in ticks),
        oldest_ns=max(tick.oldest_ns for tick in ticks),
        bytes_received=sum(tick.bytes_received for tick in ticks),
        sending_ns=sum_if_known(tick.sending_ns for tick in ticks),
        receiving_ns=sum_if_known(tick.receiving_ns for tick in ticks),
        late_beats=sum(tick.late_beats for tick in ticks),
        late_beats_ns=sum(tick.late_beats_ns for tick in ticks),
        users=sum(tick.users for tick in ticks),
        host_cores=max(tick.host_cores for tick in ticks),
        last=all(tick.last for tick in ticks),
    )


def together(ticks: Mapping[str, Tick]) -> Tick:
    """Make one tick of those that several workers report for the same time, which remembers what each of them did.

    Args:
        ticks: By the workers' names, in the order of their parts. Of one that is itself of several workers these count.

    Raises:
        ValueError: There are none, or their numbers differ.
    """
    workers: dict[str, Tick] = {}
    for name, tick in ticks.items():
        workers.update(tick.workers or {name: msgspec.structs.replace(tick, answers=[])})
    return msgspec.structs.replace(merge_ticks(list(ticks.values())), workers=workers)


def added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Counts by kind, added up."""
    counts: dict[str, int] = {}
    for part in parts:
        for kind, count in part.items():
            counts[kind] = counts.get(kind, 0) + count
    return counts


def sum_if_known(parts: Iterable[int | None]) -> int | None:
    """The sum; None where one of them is not known."""
    whole = 0
    for part in parts:
        if part is None:
            return None
        whole += part
    return whole


def _joined(answers: Iterable[Answers]) -> list[Answers]:
    same: dict[tuple[int, bytes], Answers] = {}
    for answer in answers:
        key = (answer.index, answer.body)
        known = same.get(key)
        same[key] = (
            answer
            if known is None
            else Answers(
                index=answer.index,
                body=answer.body,
                count=known.count + answer.count,
                number=min(known.number, answer.number),
            )
        )
    return list(same.values())
