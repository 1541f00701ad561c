"""This machine, measured: how fast it is now, and whether what was stored is of a machine as fast as that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuserve.device.yardstick import YardstickFailed, measure_card, measure_cores
from pytest_gpuserve.measure.yardstick import Yardstick, is_as_fast, speed_changes, speed_ratio
from pytest_gpuserve.units import format_fraction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuserve.device import Device
    from pytest_gpuserve.store.baseline import Stored

THIS_MACHINE: Final = "this machine"

FEW_PERCENT: Final = 0.2
"""A smaller change of speed is told in percent."""


class Machine:
    """Measures the machine beside each session.

    Args:
        device: What servers run on.
        note: Hears, once each, what could not be measured.
    """

    def __init__(self, device: Device, note: Callable[[str], None]) -> None:
        self._device = device
        self._note = note

    def reading(self, python: str) -> Mapping[str, float]:
        """Measure it now, which takes 0.4 s, and on a card seconds; empty where that fails.

        Args:
            python: The server's interpreter, whose torch measures a card; empty where nobody knows it.
        """
        try:
            rates = measure_cores(self._device.host.cores)
            if self._device.card is not None and python:
                rates |= measure_card(python, self._device.environment())
        except YardstickFailed as problem:
            self._note(f"{_no_reading(THIS_MACHINE)}: {problem.found}")
            return {}
        return rates


def as_fast(stored: Stored, now: Yardstick) -> Stored | None:
    """What of a baseline was recorded by a machine as fast as this one is now; None where nothing was.

    Args:
        stored: The baseline.
        now: The run's yardstick.
    """
    kept = [
        (record, session)
        for record, session in zip(stored.entry.sessions, stored.sessions, strict=True)
        if is_as_fast(session.yardstick, now)
    ]
    return stored.narrowed(kept) if kept else None


def is_clearly_other(stored: Stored, now: Yardstick) -> bool:
    """Whether a single reading shows that no session of a baseline is of a machine as fast as this one is now."""
    return not any(
        session.yardstick.rates.keys() == now.rates.keys()
        and now.rates
        and all(change.is_near for change in speed_changes(session.yardstick, now))
        for session in stored.sessions
    )


def why_other(stored: Stored, now: Yardstick) -> str:
    """Say why a baseline's numbers decide nothing here and now: how much faster the machine is than it was then."""
    return speed_text(stored.sessions[-1].yardstick, now, "the baseline was recorded")


def speed_text(then: Yardstick, now: Yardstick, when: str, machine: str = THIS_MACHINE) -> str:
    """``this machine is 1.9 times as fast as when the baseline was recorded``, or ``6 % faster than when ...``.

    By the kind of work that has moved furthest; of all kinds the JSON has the readings.
    """
    if not now.rates:
        return f"{_no_reading(machine)}, so nobody knows whether it is as fast as when {when}"
    ratio = speed_ratio(then, now)
    if ratio is None:
        return f"how fast the machine was when {when} is not known: it has no yardstick"
    if then.rates.keys() != now.rates.keys():
        kinds = ", ".join(sorted(then.rates.keys() ^ now.rates.keys()))
        return f"{machine} was not measured by the same work as when {when}: {kinds}"
    if all(change.is_near for change in speed_changes(then, now)):
        return f"{machine} is not known to be as fast as when {when}: its speed varies too much"
    if abs(ratio - 1) < FEW_PERCENT:
        word = "faster" if ratio > 1 else "slower"
        return f"{machine} is {format_fraction(abs(round(ratio, 2) - 1))} {word} than when {when}"
    return f"{machine} is {ratio:.2g} times as fast as when {when}"


def _no_reading(machine: str) -> str:
    return f"how fast {machine} is could not be measured"
