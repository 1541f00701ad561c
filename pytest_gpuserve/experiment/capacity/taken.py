"""A probe with what it was made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pytest_gpuserve.gate.reason import Reason
    from pytest_gpuserve.load.wire import Tick
    from pytest_gpuserve.measure.capacity import Probe
    from pytest_gpuserve.measure.window import Window


class Taken(NamedTuple):
    """A probe with what it was made of.

    Args:
        probe: What it showed.
        ticks: What was measured.
        window: The same as a window.
        doubts: Why that may not be what the server does under this load alone.
    """

    probe: Probe
    ticks: list[Tick]
    window: Window
    doubts: tuple[Reason, ...] = ()
