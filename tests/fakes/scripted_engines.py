"""A server and its load engines that are not there: their ticks take no time but that of a clock which a test moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from pytest_gpuserve.load.schedule import Steps
from pytest_gpuserve.load.wire import Latencies, Tick
from pytest_gpuserve.measure.histogram import bucket_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

    from pytest_gpuserve.load.wire import Plan
    from pytest_gpuserve.servers.instance import Instance

TICK_NS: Final = 100_000_000
TICK_REQUESTS: Final = 100
LATENCY_NS: Final = 4_000_000


def scripted_instance(port: int = 1, **values: Any) -> Instance:  # noqa: ANN401 -- whatever an instance has
    """A server of ours that lives and counts nothing, but for what is said of it."""
    site = SimpleNamespace(host="127.0.0.1", port=port, tls=False, ca_file="")
    known: dict[str, Any] = {
        "kind": None,
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
        plan: Of the load.
        passing: Lets a tenth of a second pass and returns when it began.
        asked: Hears what is asked of them: to be ``ready``, to ``begin``, to ``halt``, or for a ``tick``.
        pids: Of their processes.
    """

    def __init__(
        self,
        plan: Plan,
        passing: Callable[[], int],
        asked: Callable[[str], None] = lambda _: None,
        pids: tuple[int, ...] = (),
    ) -> None:
        steps = plan.schedule.steps if isinstance(plan.schedule, Steps) else ()
        self.ticks = round(sum(seconds for _, seconds in steps) * 1e9) // TICK_NS
        self.number = 0
        self.pids = pids
        self._passing, self._asked = passing, asked
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
        del seed
        self._asked("halt")

    def next_tick(self) -> Tick:
        """See ``Engines``."""
        self._asked("tick")
        begin_ns = self._passing()
        self.number += 1
        latency = Latencies({bucket_of(LATENCY_NS): TICK_REQUESTS}, TICK_REQUESTS * LATENCY_NS, LATENCY_NS)
        return Tick(
            self.number - 1,
            begin_ns,
            begin_ns + TICK_NS,
            requests=TICK_REQUESTS,
            latency=latency,
            service=latency,
            lag=Latencies({bucket_of(1000): TICK_REQUESTS}, TICK_REQUESTS * 1000, 1000),
            cpu_ns=1_000_000,
            sent=TICK_REQUESTS,
            due=TICK_REQUESTS,
            in_flight=4,
            in_flight_ns=TICK_REQUESTS * LATENCY_NS,
            users=4,
            last=self.number == self.ticks,
        )
