"""Of samples of cards, host and processes: what happened in a stretch of time that they lie in and around."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.series import NS, covers, integral_between, rise_between
from pytest_gpuserve.measure.telemetry import CardTelemetry, Energy, Spread, Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pytest_gpuserve.device.sample import CardSample, HostSample, TelemetrySample
    from pytest_gpuserve.measure.series import Point

FAST_GAP_NS: Final = NS // 2
"""Between two samples of what is seen ten times a second; nothing is known of a longer one."""

SLOW_GAP_NS: Final = 5 * NS // 2
"""The same of what is seen once a second."""

GPU_IDLE: Final = 0x1
"""Clock-event reason of a card that has nothing to do, nvml.h's nvmlClocksEventReasonGpuIdle: its clocks fall then."""


def between(samples: Sequence[TelemetrySample], begin_ns: int, end_ns: int) -> Sequence[TelemetrySample]:
    """Find the samples that lie in a stretch of time.

    Args:
        samples: By time.
        begin_ns: Its begin, by the clock of the load's ticks.
        end_ns: Its end; a sample exactly there belongs to it no more.
    """
    first = bisect_left(samples, begin_ns, key=_at_ns)
    return samples[first : bisect_left(samples, end_ns, key=_at_ns)]


def telemetry_between(samples: Sequence[TelemetrySample], begin_ns: int, end_ns: int) -> Telemetry:
    """Sum up a stretch of time.

    Counters and power at its ends are interpolated from the samples before and after them, so that neighbouring
    stretches add up to the whole; where these are missing or too far away, what depends on them is None. A stretch
    between two neighbouring samples, such as the last one of a load, has the other values of these two.

    Args:
        samples: By time, those before and after the stretch too.
        begin_ns: As for `between`.
        end_ns: As for `between`.
    """
    inside = between(samples, begin_ns, end_ns)
    # As far around as anything is interpolated from.
    first = bisect_left(samples, begin_ns - SLOW_GAP_NS, key=_at_ns)
    around = samples[first : bisect_right(samples, end_ns + SLOW_GAP_NS, key=_at_ns)]
    seconds = (end_ns - begin_ns) / NS

    def rise(read: Callable[[TelemetrySample], float | None], gap_ns: int = FAST_GAP_NS) -> float | None:
        return rise_between(points(around, read), begin_ns, end_ns, gap_ns)

    busy = rise(lambda sample: _host(sample, lambda host: host.busy_seconds), SLOW_GAP_NS)
    uuids = dict.fromkeys(card.uuid for sample in around for card in sample.cards)
    nearest = inside or _neighbours(around, begin_ns)
    return Telemetry(
        seconds,
        len(inside),
        covers([sample.at_ns for sample in around], begin_ns, end_ns, FAST_GAP_NS),
        {uuid: _card(uuid, nearest, around, begin_ns, end_ns) for uuid in uuids},
        server_cpu_seconds=rise(lambda sample: sample.server_cpu_seconds),
        client_cpu_seconds=rise(lambda sample: sample.client_cpu_seconds),
        sampler_cpu_seconds=rise(lambda sample: sample.sampler_cpu_seconds),
        busy_cores=None if busy is None or seconds <= 0 else busy / seconds,
        load=Spread.of(_host(sample, lambda host: host.load) for sample in inside),
        swap_used_bytes=Spread.of(_host(sample, lambda host: host.swap_used_bytes) for sample in inside),
        swapped_bytes=rise(lambda sample: _host(sample, lambda host: host.swapped_bytes), SLOW_GAP_NS),
    )


def _neighbours(samples: Sequence[TelemetrySample], at_ns: int) -> Sequence[TelemetrySample]:
    """Find the samples just before and after a moment; none where they are too far apart."""
    after = bisect_left(samples, at_ns, key=_at_ns)
    found = samples[max(0, after - 1) : after + 1]
    return found if after and len(found) > 1 and found[1].at_ns - found[0].at_ns <= FAST_GAP_NS else ()


def _card(
    uuid: str, inside: Sequence[TelemetrySample], around: Sequence[TelemetrySample], begin_ns: int, end_ns: int
) -> CardTelemetry:
    seen = [card for card in (card_of(sample, uuid) for sample in inside) if card is not None]
    masks = [card.clock_reasons for card in seen if card.clock_reasons is not None]
    bits = {bit for mask in masks for bit in _bits(mask)}
    busy = [card for card in seen if card.clock_reasons is None or not card.clock_reasons & GPU_IDLE]
    return CardTelemetry(
        uuid,
        gpu_utilisation=Spread.of(card.gpu_utilisation for card in seen),
        memory_utilisation=Spread.of(card.memory_utilisation for card in seen),
        memory_used_bytes=Spread.of(card.memory_used_bytes for card in seen),
        sm_clock_mhz=Spread.of(card.sm_clock_mhz for card in seen),
        busy_sm_clock_mhz=Spread.of(card.sm_clock_mhz for card in busy),
        memory_clock_mhz=Spread.of(card.memory_clock_mhz for card in seen),
        power_watts=Spread.of(card.power_watts for card in seen),
        temperature_celsius=Spread.of(card.temperature_celsius for card in seen),
        pcie_received=Spread.of(card.pcie_received for card in seen),
        pcie_sent=Spread.of(card.pcie_sent for card in seen),
        energy=energy_between(around, uuid, begin_ns, end_ns),
        clock_reasons={bit: sum(bool(mask & bit) for mask in masks) for bit in sorted(bits)} if masks else None,
        clock_reasons_samples=len(masks),
    )


def card_of(sample: TelemetrySample, uuid: str) -> CardSample | None:
    """Find what a sample says of a card; None if nothing."""
    return next((card for card in sample.cards if card.uuid == uuid), None)


def points(samples: Iterable[TelemetrySample], read: Callable[[TelemetrySample], float | None]) -> list[Point]:
    """List a value of those samples that have it, with their times."""
    found = ((sample.at_ns, read(sample)) for sample in samples)
    return [(at_ns, value) for at_ns, value in found if value is not None]


def energy_between(samples: Sequence[TelemetrySample], uuid: str, begin_ns: int, end_ns: int) -> Energy | None:
    """Find the energy that a card took up: by its counter, else as the integral of its power, else None.

    A counter that was reset (the driver was loaded anew) is none for that stretch.
    """

    def of_card(read: Callable[[CardSample], float | None]) -> list[Point]:
        cards = ((sample.at_ns, card_of(sample, uuid)) for sample in samples)
        found = ((at_ns, None if card is None else read(card)) for at_ns, card in cards)
        return [(at_ns, value) for at_ns, value in found if value is not None]

    joules = rise_between(of_card(lambda card: card.energy_joules), begin_ns, end_ns, FAST_GAP_NS)
    if joules is not None:
        return Energy(joules, "counter")
    joules = integral_between(of_card(lambda card: card.power_watts), begin_ns, end_ns, FAST_GAP_NS)
    return None if joules is None else Energy(joules, "power")


def _host(sample: TelemetrySample, read: Callable[[HostSample], float]) -> float | None:
    return None if sample.host is None else read(sample.host)


def _bits(mask: int) -> Iterable[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


def _at_ns(sample: TelemetrySample) -> int:
    return sample.at_ns
