"""Servers and load engines that are not there: their ticks take no time but that of a clock which a test moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from pytest_gpuserve.device.host import CpuReading
from pytest_gpuserve.load.schedule import Steps
from tests.load import ticks
from tests.load.ticks import TICK_NS

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import pytest
    from typing_extensions import Self

    from pytest_gpuserve.load.tick import Tick
    from pytest_gpuserve.load.wire import Plan
    from pytest_gpuserve.servers.instance import Instance

TICK_REQUESTS: Final = 100
USERS: Final = 4


def stand_in(
    patch: pytest.MonkeyPatch, engines: Callable[..., ScriptedEngines], foreign: Callable[..., float] = lambda *_: 0.0
) -> None:
    """Take the place of all load engines and of looks at the host, of which others take so many cores."""
    from pytest_gpuserve.experiment import loaded

    patch.setattr(loaded, "Engines", engines)
    patch.setattr(loaded, "our_processes", lambda _: [])
    patch.setattr(loaded, "read_cpu", lambda _: CpuReading(0.0, 0.0, 0.0, 0.0))
    patch.setattr(loaded, "cores_taken_by_others", foreign)


def scripted_instance(port: int = 1, **values: Any) -> Instance:  # noqa: ANN401 -- whatever an instance has
    """A server of ours that lives and counts nothing, but for what is said of it."""
    site = SimpleNamespace(host="127.0.0.1", port=port, tls=False, ca_file="")
    known: dict[str, Any] = {
        "kind": SimpleNamespace(name="mosec"),
        "process": None,
        "members": tuple,
        "counters": lambda: None,
        "death": lambda **_: None,
        "shown": lambda text, _: text,
        "site": site,
        "cold_start_seconds": 1.0,
        "cold_start_parts": {},
        "settings": {},
    }
    return cast("Instance", SimpleNamespace(**known | values))


class ScriptedEngines:
    """Engines that have a hundred answers in each tenth of a second; a schedule of steps ends as it says.

    Args:
        plan: Plan of the load.
        passing: Lets a tenth of a second pass and returns when it began.
        asked: Hears what is asked of them: to be ``ready``, to ``begin``, to ``halt``, or for a ``tick``.
        pids: Pids of their processes.
        changed: Makes of a tick what is reported.
        seeds: Gets those of the loads to come.
    """

    def __init__(
        self,
        plan: Plan,
        passing: Callable[[], int],
        asked: Callable[[str], None] = lambda _: None,
        *,
        pids: tuple[int, ...] = (),
        changed: Callable[[Tick], Tick] = lambda tick: tick,
        seeds: list[int] | None = None,
    ) -> None:
        steps = plan.schedule.steps if isinstance(plan.schedule, Steps) else ()
        self.ticks = round(sum(seconds for _, seconds in steps) * 1e9) // TICK_NS
        self.number = 0
        self.pids = pids
        self._seeds = [] if seeds is None else seeds
        self._passing, self._asked, self._changed = passing, asked, changed
        asked("ready")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def begin(self) -> None:
        """See ``Engines``."""
        self._asked("begin")
        self.number = 0

    def halt(self, *, seed: int) -> None:
        """See ``Engines``."""
        self._seeds.append(seed)
        self._asked("halt")

    def next_tick(self) -> Tick:
        """See ``Engines``."""
        self._asked("tick")
        begin_ns = self._passing()
        self.number += 1
        return self._changed(tick_of(self.number - 1, begin_ns, last=self.number == self.ticks))


def tick_of(
    number: int, begin_ns: int, requests: int = TICK_REQUESTS, *, users: int = USERS, last: bool = False
) -> Tick:
    """A tick in which so many users had so many answers, each as soon as that takes."""
    latency_ns = users * TICK_NS // max(requests, 1)
    return ticks.tick_of(
        number,
        requests,
        latency_ns,
        begin_ns=begin_ns,
        end_ns=begin_ns + TICK_NS,
        service=ticks.alike(requests, latency_ns),
        lag=ticks.alike(requests, 1000),
        under_way=users,
        last=last,
    )
