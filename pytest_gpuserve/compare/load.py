"""A load of a test as a side of a comparison knows it, whether from a baseline or from a result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.yardstick import Yardstick

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_WORKLOAD: Final = (
    "the file does not say what its workload was, as older versions wrote it, and it may be another one"
)


@dataclass(frozen=True, order=True, slots=True)
class Key:
    """What a load is called.

    Args:
        device: On which it was measured, as ``--gpu`` names it.
        file: Of its baseline, below the device's folder: ``x/test_y.json``.
        name: Of its entry there: ``test_z[1]``.
    """

    device: str
    file: str
    name: str

    def __str__(self) -> str:
        return f"{self.device} {self.file}::{self.name}"


@dataclass(frozen=True, slots=True)
class Taken:
    """Where and when a session of a load was taken, by which it is told from others.

    Args:
        host: Where it was measured.
        occasion: Begin of the run of pytest that it belongs to, ISO 8601 in UTC.
        at: When it began itself, likewise; empty where that is not known.
    """

    host: str
    occasion: str
    at: str

    def is_same(self, other: Taken) -> bool:
        """Whether both are of one session, or of one run of pytest where either does not say of which session."""
        if self.host != other.host:
            return False
        # Workers of one run have occasions of their own, but a session began when it began.
        return self.at == other.at if self.at and other.at else self.occasion == other.occasion


@dataclass(frozen=True, slots=True)
class Sample:
    """A session, as far as one metric goes.

    Args:
        host: Where it was measured.
        occasion: Run of pytest that it belongs to.
        at: When it began itself, ISO 8601 in UTC; empty where that is not known.
        y: As in ``measure.reduced.Reduced``.
        u: As there.
        starts: As there.
        requests: As there.
        yardstick: How fast the machine was meanwhile.
    """

    host: str
    occasion: str
    at: str
    y: float
    u: float
    starts: int
    requests: int
    yardstick: Yardstick = field(default_factory=Yardstick, compare=False)

    @property
    def taken(self) -> Taken:
        """What tells its session from others."""
        return Taken(self.host, self.occasion, self.at)


@dataclass(frozen=True)
class Load:
    """What a side knows of a load.

    Args:
        key: What it is called.
        values: Each metric over all that was measured, in its unit.
        samples: Each metric's sessions, oldest first.
        unsampled: Why a metric that has a value may have no sessions.
        workload: What another must have in common with it; None where nobody knows.
        devices: Facts of the devices that it was measured on, as in a baseline's records.
        machines: Facts of the hosts, likewise.
        tolerances: Of those metrics whose tests say so.
        asked: Names of the metrics that its test compared, as far as that is known.
        problems: Why nothing may be concluded from it.
        beside: Whom it was measured side by side with; empty for nobody.
        is_result: Whether it is of a result file, not of a baseline: the numbers of a session then differ in rounding.
    """

    key: Key
    values: Mapping[str, float]
    samples: Mapping[str, tuple[Sample, ...]]
    unsampled: str
    workload: Mapping[str, str] | None
    devices: tuple[Mapping[str, object], ...]
    machines: tuple[Mapping[str, object], ...]
    tolerances: Mapping[str, float]
    asked: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()
    beside: str = ""
    is_result: bool = False

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that it was measured on, each once."""
        return tuple(dict.fromkeys(str(machine.get("id")) for machine in self.machines))
