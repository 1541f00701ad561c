"""Loads from the nodes of a Ray cluster: one of this run's own, or an existing one.

The pytest process does not import Ray. It starts ``python -m pytest_gpuserve.load.ray OWNER ADDRESS`` for each load.
That coordinator acts as one engine (``load.wire``). It places a worker for each part of the load, spread over the
nodes, begins them at one instant, and adds up their ticks. A worker that is lost or silent ends the load; the last
report names it and the reason.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import queue
import re
import secrets
import socket
import sys
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

import pytest_gpuserve
from pytest_gpuserve.errors import GpuserveError, LoadFailed, UsageProblem
from pytest_gpuserve.load.driver import EngineSource
from pytest_gpuserve.load.engine.pipes import read_order, read_plan
from pytest_gpuserve.load.ray_worker import RayWorker, network_of
from pytest_gpuserve.load.tick import aligned, together
from pytest_gpuserve.load.validity import one_line
from pytest_gpuserve.load.wire import Begin, Failed, Ready, frame
from pytest_gpuserve.process.child import Command, Process
from pytest_gpuserve.process.command_line import module_command
from pytest_gpuserve.process.ports import free_port
from pytest_gpuserve.units import Deadline, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pytest_gpuserve.load.wire import Order, Plan, Report
    from pytest_gpuserve.measure.window import Window

_CLIENT: Final = "ray://"
_ADDRESS: Final = re.compile(
    rf"(?:{_CLIENT})?(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]{{0,252}}):(?P<port>[0-9]{{1,5}})"
)

_QUIET: Final = {
    # Disables usage statistics.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Under `uv run` Ray would send the working folder to the cluster.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # A load does not survive a broken connection; without this, its workers would for half a minute.
    "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "0",
}
"""Environment of all our processes that use Ray."""

_OWN: Final = {
    **_QUIET,
    # By default Ray advertises 127.0.0.1 to other hosts.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # A client of a cluster can run any code in it, as its user, so a token is needed on a shared host.
    "RAY_AUTH_MODE": "token",
    # Ray must not start idle processes, or kill a worker because of a server's memory.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_memory_monitor_refresh_ms": "0",
}
"""Environment of all processes of this run's own cluster, and of its clients."""

TOKEN_FILE: Final = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 -- the name of a variable
"""Variable with the path of a cluster's secret."""

_LEAST: Final = (2, 52)
"""Oldest Ray with tokens; an older one accepts every client."""

_START_SECONDS: Final = 90.0
"""Longest wait for a cluster of this run's own, on a busy machine; usual are some 5 s."""

_END_SECONDS: Final = 0.5
"""Time from the request to end to SIGKILL: a node would drain for half a minute, without a benefit."""

_LOGICAL_CPUS: Final = 1024
"""Most workers at a time, two loads side by side; the load itself checks whether the host keeps up with them."""

_LONGEST_FOLDER: Final = 39
"""Longest folder: Ray makes Unix sockets in it, whose paths are limited to 107 bytes, and needs 68 of them."""


def check_engine(text: str, option: str) -> str:
    """Return the load engine: ``local``, ``ray`` or the address of a cluster.

    Args:
        text: The value as it was typed.
        option: Name of its option, for messages.

    Raises:
        UsageProblem: The value is not one of these.
    """
    found = _ADDRESS.fullmatch(text)
    if text in {"local", "ray"} or (found and 1 <= int(found["port"]) <= 65535):
        return text
    raise UsageProblem(
        f"{option} is neither the name of a load engine nor the address of a Ray cluster",
        # Text before an @ may be a password.
        found="a user's name before the host" if "@" in text else repr(text[:200]),
        remedies=[
            f"{option}=local, processes of this host, the default",
            f"{option}=ray, engines on a Ray cluster that this run begins and ends",
            f"{option}=ray://HOST:PORT, engines on an existing cluster (most listen on port 10001)",
            f"{option}=HOST:PORT, the same from one of its own nodes (most listen on port 6379)",
        ],
    )


class RayEngine:
    """Makes the loads of a run on Ray.

    A cluster of this run's own is started when the first load needs it. An existing cluster is never ended.

    Args:
        choice: ``ray``, or the address of an existing cluster.
        option: Name of the option, for messages.
    """

    def __init__(self, choice: str, option: str) -> None:
        self._address = "" if choice == "ray" else choice
        self._option = option
        self._own: _OwnCluster | None = None
        self.name = f"Ray at {self._address}" if self._address else "Ray, a cluster of this run on this host"

    def check(self) -> None:
        """Check, before a server is started, that Ray is installed and its cluster listens.

        Raises:
            UsageProblem: Ray or its cluster is missing; the text has a remedy.
        """
        spec = importlib.util.find_spec("ray")
        # A folder of that name is not a library.
        if spec is None or spec.origin is None:
            raise UsageProblem(
                f"{self._option} needs ray, but it is not installed",
                remedies=["pip install 'pytest-gpuserve[ray]'", f"{self._option}=local"],
            )
        if self._address:
            self._check_listens()
            return
        version = importlib.metadata.version("ray")
        if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < _LEAST:
            least = ".".join(map(str, _LEAST))
            raise UsageProblem(
                f"{self._option}=ray needs at least ray {least}: an older one lets everybody into the cluster",
                found=f"ray's version is {version}",
                remedies=[f"pip install 'ray>={least}'", f"{self._option}=local"],
            )

    def _check_listens(self) -> None:
        found = _ADDRESS.fullmatch(self._address)
        assert found is not None
        try:
            socket.create_connection((found["host"].strip("[]"), int(found["port"])), 5.0).close()
        except OSError as problem:
            raise UsageProblem(
                f"the Ray cluster at {self._address} could not be joined",
                found=problem.strerror or str(problem),
                remedies=[
                    "check that it runs: `ray status` on its head node",
                    f"{self._option}=ray, engines on a cluster that this run begins and ends",
                ],
            ) from problem

    def source(self, log: Path) -> EngineSource:
        """Source of engines; a cluster of this run's own writes into the log."""
        return EngineSource(
            name=self.name,
            is_here=not self._address,
            ready_seconds=240.0,
            end_seconds=15.0,
            # The plan tells the coordinator how many workers there are.
            commands=lambda _workers: [self._coordinator(log)],
        )

    def _coordinator(self, log: Path) -> list[str]:
        """Command of a coordinator."""
        address, environment = self._address, _QUIET
        if not address:
            if self._own is None or self._own.process.exit_status() is not None:
                self.close()
                self._own = _OwnCluster.start(log)
            address, environment = self._own.address, {**_OWN, TOKEN_FILE: str(self._own.token)}
        command = module_command("pytest_gpuserve.load.ray", str(os.getpid()), address)
        # The token of another cluster would be taken for this one's.
        others = [] if self._address else ["--unset=RAY_AUTH_TOKEN"]
        variables = (f"{name}={value}" for name, value in environment.items())
        return ["env", *others, *variables, *command]

    def close(self) -> None:
        """End the cluster, if it is this run's own and was started; later calls do nothing.

        Raises:
            ServerFailed: A process or file of it cannot be removed.
        """
        own, self._own = self._own, None
        if own is not None:
            own.process.stop(_END_SECONDS)


@dataclass(frozen=True, slots=True)
class _OwnCluster:
    """A cluster of one node on this host's loopback, which ends with this process in any case."""

    process: Process
    address: str
    token: Path

    @classmethod
    def start(cls, log: Path) -> _OwnCluster:
        """Start the cluster, and wait until clients can join.

        Raises:
            LoadFailed: The cluster did not start.
            ServerFailed: No more processes are possible.
        """
        name = f"gpuserve-ray-{uuid.uuid4().hex[:8]}"
        folder = Path(tempfile.gettempdir()) / name
        if len(str(folder).encode()) > _LONGEST_FOLDER:
            folder = Path("/tmp") / name  # noqa: S108 -- its name cannot be guessed
        token, packages = folder / "token", folder / "packages"
        process = Process([folder], log=log)
        try:
            packages.mkdir(mode=0o700, parents=True)
            folder.chmod(0o700)
            # Its workers run this code, even from a checkout.
            package = Path(pytest_gpuserve.__file__).resolve().parent
            (packages / package.name).symlink_to(package)
            token.touch(mode=0o600)
            token.write_text(secrets.token_hex(32))
        except OSError as problem:
            process.stop()
            raise LoadFailed("the folder of the Ray cluster could not be made", found=str(problem)) from problem
        address = f"127.0.0.1:{free_port()}"
        # The user's variables for another cluster do not apply to this one.
        others = {each: value for each, value in os.environ.items() if not each.startswith("RAY_")}
        paths = [str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**others, **_OWN, TOKEN_FILE: str(token), "PYTHONPATH": os.pathsep.join(paths)}
        start = "-m ray.scripts.scripts start --head --block --include-dashboard=false"
        options = {
            "port": address.rpartition(":")[2],
            "node-ip-address": "127.0.0.1",
            # Random ports: by default Ray reserves 10002 to 19999, and fails if its own port is among them.
            "min-worker-port": "0",
            "max-worker-port": "0",
            "num-cpus": str(_LOGICAL_CPUS),
            "num-gpus": "0",
            "object-store-memory": str(80 << 20),  # the least that Ray accepts
            "temp-dir": str(folder / "ray"),
        }
        command = (sys.executable, *start.split(), *(f"--{option}={value}" for option, value in options.items()))
        process.run(Command(command, environment, folder, log))
        try:
            _wait_for(process, folder / "ray")
        except BaseException:
            process.stop(0)
            raise
        return cls(process, address, token)


def _wait_for(process: Process, folder: Path) -> None:
    """Wait until the node has its sockets: clients can join then."""
    deadline = Deadline.after(_START_SECONDS)
    while not deadline.expired():
        if process.exit_status() is not None:
            raise LoadFailed(
                "the Ray cluster of this run did not start", found=process.describe_exit(), log_tail=process.tail()
            )
        if any(folder.glob("session_*/sockets/raylet*")):
            return
        time.sleep(0.05)
    raise LoadFailed(f"the Ray cluster of this run did not start in {_START_SECONDS:.0f} s", log_tail=process.tail())


# -- the coordinator

_CONNECT_SECONDS: Final = 30.0
_PLACE_SECONDS: Final = 100.0
"""Longest time of workers to find a place and start an engine there; a cluster that grows by itself needs it."""

_CALL_SECONDS: Final = 40.0
"""Limit of a call that starts or ends a load in an engine."""

_SILENCE_SECONDS: Final = 15.0
"""Silence after which a worker is given up. It is shorter than the owner's own limit, because the owner does not know
the worker's name."""

_CLOCK_CALLS: Final = 16
_MOST_CLOCK_CALLS: Final = 96
_MOST_UNSURE_NS: Final = 5_000_000
"""Required precision of a worker's clock: 1 % of the shortest window. Workers that begin apart do not load the server
together, and the same build would differ from itself side by side."""

_LEAD_NS: Final = 100_000_000
_LEAD_A_WORKER_NS: Final = 2_000_000
"""Time from an order to begin until the begin, and additional time for each worker."""

_LEAVE_SECONDS: Final = 5.0
"""Longest time to leave the cluster; after that, the cluster itself ends our remains."""


class Coordinator:
    """Acts for all workers of a load as one engine.

    Args:
        ray: Ray's library, or a fake of it; it has joined the cluster.
        plan: The load.
        orders: The owner's orders; None at their end.
        write: Writes reports.
    """

    def __init__(
        self,
        ray: Any,  # noqa: ANN401 -- a module without types
        plan: Plan,
        orders: queue.SimpleQueue[Order | None],
        write: Callable[[Report], None],
    ) -> None:
        self._ray = ray
        self._plan = plan
        self._orders = orders
        self._write = write
        self._workers: dict[str, Any] = {}
        self._ahead_ns: dict[str, int] = {}

    def run(self) -> None:
        """Make the load, as often as the owner orders.

        Raises:
            LoadFailed: A worker could not take part, or was lost; the text names it.
            EOFError: The orders ended.
        """
        self._place()
        self._write(Ready())
        while True:
            order = self._next_order()
            if isinstance(order, Begin):
                self._load(order)
            else:
                self._ask("again", dict.fromkeys(self._workers, (order.seed,)), _CALL_SECONDS)
                self._write(Ready())

    def _next_order(self) -> Order:
        order = self._orders.get()
        if order is None:
            raise EOFError
        return order

    def _place(self) -> None:
        """Find a place for each worker, and start their engines.

        Ray spreads the workers: one on each node, as far as the nodes suffice.
        """
        actor = self._ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(
            RayWorker
        )
        plan, network, version = msgspec.msgpack.encode(self._plan), network_of(self._plan), pytest_gpuserve.__version__
        given = {f"worker-{part}": (plan, part, network, version) for part in range(self._plan.parts)}
        self._workers = {name: actor.remote() for name in given}
        nodes = self._ask("start", given, _PLACE_SECONDS)
        self._workers = {f"{nodes[name]}/{name}": worker for name, worker in self._workers.items()}
        for name in self._workers:
            self._set_clock(name)

    def _load(self, begin: Begin) -> None:
        """Make the load until its end, or until another order of the owner."""
        lead_ns = _LEAD_NS + _LEAD_A_WORKER_NS * len(self._workers)
        at_ns = max(begin.at_ns, time.perf_counter_ns() + lead_ns)
        begins = {name: (at_ns + self._ahead_ns[name],) for name in self._workers}
        self._ask("begin", begins, _CALL_SECONDS)
        under_way = set(self._workers)
        while under_way and self._orders.empty():
            ticks = aligned(self._ticks(under_way), self._ticks)
            # A worker whose load is shorter no longer takes part.
            under_way = {name for name, tick in ticks.items() if not tick.last}
            self._write(together(ticks))

    def _ticks(self, names: Collection[str]) -> dict[str, Window]:
        """Next ticks of these workers, by our clock; durations in them are the same by all clocks."""
        told = self._ask("tick", dict.fromkeys(names, ()), _SILENCE_SECONDS)
        for name, tick in told.items():
            ahead_ns = self._ahead_ns[name]
            told[name] = msgspec.structs.replace(tick, begin_ns=tick.begin_ns - ahead_ns, end_ns=tick.end_ns - ahead_ns)
        return told

    def _set_clock(self, name: str) -> None:
        """Measure the offset of a worker's clock, from the shortest of several calls, at its middle.

        Raises:
            LoadFailed: Even that call took so long that the offset is unknown.
        """
        shortest_ns = round(_CALL_SECONDS * 1e9)
        for number in range(_MOST_CLOCK_CALLS):
            sent_ns = time.perf_counter_ns()
            there_ns = self._ask("clock", {name: ()}, _CALL_SECONDS)[name]
            heard_ns = time.perf_counter_ns()
            if heard_ns - sent_ns < shortest_ns:
                shortest_ns = heard_ns - sent_ns
                self._ahead_ns[name] = there_ns - (sent_ns + heard_ns) // 2
            if number + 1 >= _CLOCK_CALLS and shortest_ns <= 2 * _MOST_UNSURE_NS:
                return
        raise LoadFailed(
            f"the clock of {name} is known only to within {format_seconds(shortest_ns / 2e9)}, but"
            f" {format_seconds(_MOST_UNSURE_NS / 1e9)} are required: end other work on its node, or run pytest on a"
            " host nearer to the cluster"
        )

    def _ask(self, method: str, given: Mapping[str, tuple[object, ...]], seconds: float) -> dict[str, Any]:
        """Call a method of all workers at the same time, each with its own argument, and wait for all answers.

        Raises:
            LoadFailed: A worker is lost, does not answer in time, or failed.
        """
        asked = {name: getattr(self._workers[name], method).remote(*values) for name, values in given.items()}
        _, late = self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=seconds)
        silent = ", ".join(name for name, reference in asked.items() if reference in late)
        if silent:
            cpus = self._ray.cluster_resources().get("CPU", 0)
            raise LoadFailed(
                f"{silent}: no answer in {format_seconds(seconds)}. Its node hangs, or it found no place on the"
                f" {cpus:g} logical CPUs of the Ray cluster: add nodes, or use fewer workers, load(processes=N)"
            )
        found = {}
        for name, reference in asked.items():
            try:
                found[name] = self._ray.get(reference)
            except Exception as problem:
                # Ray passes on an exception of the worker as the cause of its own.
                cause = getattr(problem, "cause", problem)
                if isinstance(cause, GpuserveError):
                    raise LoadFailed(f"{name}: {in_one_line(cause)}") from problem
                raise LoadFailed(f"{name} was lost: {plain(problem)}") from problem
        return found


def in_one_line(problem: GpuserveError) -> str:
    """An error in one line, with the last line of its log, which has the reason of a process' end."""
    told = f"{problem.summary} ({problem.found})" if problem.found else problem.summary
    last = problem.log_tail.strip().rpartition("\n")[2]
    return one_line("; ".join([f"{told}: {last}" if last else told, *problem.remedies]))


def plain(problem: BaseException) -> str:
    """Reason of a worker's failed call, in one line; for a traceback its last line."""
    lines = str(problem).strip().splitlines()
    if any(line.startswith(("Traceback", "ray::")) for line in lines):
        lines = lines[-1:]
    # Ray's lines on class, actor, process and namespace begin with a tab.
    text = one_line(" ".join(line for line in lines if not line.startswith("\t")))
    text = text.partition(" Some common causes include")[0] or type(problem).__name__
    return text if len(text) <= 400 else f"{text[:400]}…"


def main() -> None:
    """Read the plan, and make the load as often as the owner orders."""
    owner, address = int(sys.argv[1]), sys.argv[2]
    # Ray prints long texts too, but standard output is for reports only.
    reports = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # Ray would have its workers look for modules in our working folder.
    os.chdir("/")
    status = 0
    orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()

    def write(report: Report) -> None:
        reports.write(frame(report))
        reports.flush()

    try:
        plan = read_plan(owner)
        threading.Thread(target=_listen, args=(owner, orders), daemon=True).start()
        Coordinator(_joined(address, write), plan, orders, write).run()
    except (EOFError, BrokenPipeError):
        pass
    except GpuserveError as problem:
        status = 1
        with suppress(BrokenPipeError):
            write(Failed(in_one_line(problem)))
    _after(_LEAVE_SECONDS, lambda: os._exit(status))
    with suppress(Exception):
        sys.modules["ray"].shutdown()
    # Without Ray's own work at the end of a process.
    os._exit(status)


def _listen(owner: int, orders: queue.SimpleQueue[Order | None]) -> None:
    """Read the owner's orders; after the owner's end, this process ends in any state."""
    with suppress(EOFError):
        while True:
            orders.put(read_order(owner))
    orders.put(None)
    _after(_LEAVE_SECONDS, lambda: os._exit(0))


def _joined(address: str, write: Callable[[Report], None]) -> Any:  # noqa: ANN401 -- a module without types
    """Join the cluster, and return Ray's library.

    Raises:
        LoadFailed: The cluster cannot be joined.
    """

    def give_up() -> None:
        write(Failed(f"the Ray cluster at {address} could not be joined in {format_seconds(_CONNECT_SECONDS)}"))
        os._exit(1)

    # In some states Ray waits in such a way that no exception reaches it.
    timer = _after(_CONNECT_SECONDS, give_up)
    try:
        import ray  # noqa: PLC0415 -- optional, and takes a second

        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as problem:
        raise LoadFailed(f"the Ray cluster at {address} could not be joined: {plain(problem)}") from problem
    finally:
        timer.cancel()
    return ray


def _after(seconds: float, call: Callable[[], object]) -> threading.Timer:
    """Call after a while, in any state of the main thread."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer


if __name__ == "__main__":
    main()
