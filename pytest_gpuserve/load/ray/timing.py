"""How well a worker's clock has to be known, and to keep time, for its reports to be those of one load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from pytest_gpuserve.load.ray.clock import Offset, Track

MOST_UNCERTAIN_NS: Final = 5_000_000
"""A worker's clock has to be known as well as this before and after a load: a twentieth of a tick."""

MOST_VAGUE_NS: Final = 10_000_000
"""And in mid-load as well as this, or it is not known when its reports were."""

MOST_ASTRAY_NS: Final = 5_000_000
"""By so much a clock may certainly go astray in a load: it was set, or runs so wrong that durations are wrong too."""

MOST_MOVED_NS: Final = 50_000_000
"""And by so much it may drift: half a tick. Each engine's ticks are a tenth of a second by its own clock, so that those
of the same number come to be of other times."""


def check_kept(name: str, clock: Track) -> None:
    """See that a clock keeps time well enough.

    Args:
        name: The worker's.
        clock: Its own, since the load began.

    Raises:
        LoadFailed: It went away from ours, or is not known any more.
    """
    if clock.astray_ns > MOST_ASTRAY_NS:
        raise LoadFailed(
            f"the clock of {name} went away from this host's during the load, by"
            f" {format_seconds(clock.astray_ns / 1e9)} at least"
        )
    if clock.moved_ns > MOST_MOVED_NS:
        raise LoadFailed(
            f"the clock of {name} has drifted by {format_seconds(clock.moved_ns / 1e9)} from this host's since the load"
            " began, so that what is reported together was not at the same time; have NTP steer the clocks of all"
            " hosts, or measure for less long"
        )
    if clock.offset.uncertainty_ns > MOST_VAGUE_NS:
        raise LoadFailed(
            f"when {name} did what it reports is not known: its clock {known_to(clock.offset)}; its node, or the way to"
            " it, is overloaded"
        )


def known_to(offset: Offset) -> str:
    """How well a clock is known, in words."""
    return f"is known only to within {format_seconds(offset.uncertainty_ns / 1e9)}"
