"""What engines report, made by tests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec

from pytest_gpuserve.load.tick import Tick
from pytest_gpuserve.measure.histogram import Histogram, bucket_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pytest

TICK_NS = 100_000_000


def taken(durations_ns: Iterable[int]) -> Histogram:
    """What an engine counts of these durations."""
    durations = list(durations_ns)
    return Histogram(dict(Counter(map(bucket_of, durations))), sum(durations), max(durations, default=0))


def alike(count: int, nanoseconds: int) -> Histogram:
    """What an engine counts of so many durations of one length."""
    return Histogram({bucket_of(nanoseconds): count}, count * nanoseconds, nanoseconds) if count else Histogram()


def tick_of(number: int, requests: int, latency_ns: int, **more: Any) -> Tick:  # noqa: ANN401 -- of the tick
    """A tick in which so many requests were answered, each so long after it was sent, and nothing else is told."""
    sound = Tick(
        number,
        number * TICK_NS,
        (number + 1) * TICK_NS,
        requests=requests,
        latency=alike(requests, latency_ns),
        sent=requests,
        due=requests,
        in_flight_ns=requests * latency_ns,
        cpu_ns=TICK_NS // 10,
    )
    return msgspec.structs.replace(sound, **more)


def reporting(monkeypatch: pytest.MonkeyPatch, reports: Sequence[Tick | BaseException]) -> mock.MagicMock:
    """Let the engines of each load report these ticks, and raise what is among them; returns them."""
    from pytest_gpuserve.load import __main__ as command

    engines = mock.MagicMock()

    def begun(*_: object) -> mock.MagicMock:
        engines.__enter__.return_value.next_tick.side_effect = list(reports)
        return engines

    monkeypatch.setattr(command, "Engines", begun)
    return engines
