"""A fresh start of a server: from free ports to the end of all its processes."""

from __future__ import annotations

import http.client
import ipaddress
import os
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process.child import Command, Process, owned_folder
from pytest_gpuserve.process.logs import excerpt
from pytest_gpuserve.process.ports import claimed_ports
from pytest_gpuserve.process.ready import (
    Ask,
    Probe,
    http_probe,
    owned_port_probe,
    redirected,
    wait,
)
from pytest_gpuserve.process.secrets import secret_headers, without_secrets
from pytest_gpuserve.servers.base import Site, inherited_environment
from pytest_gpuserve.units import Deadline, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path
    from typing import TypeVar

    from pytest_gpuserve.errors import GpuserveError
    from pytest_gpuserve.measure.counters import Counters, ServerSetting
    from pytest_gpuserve.servers.base import ServerKind

    _Error = TypeVar("_Error", bound=GpuserveError)


CAUSES: Final[Mapping[str, str]] = {
    r"loading shared libraries: \S*libpython3|_recursion_count|python_backend_stub.*(undefined|shared)": (
        "Triton's Python stub cannot load the libpython of the interpreter; give an interpreter that was built with"
        " --enable-shared: python=..., or install its library (Debian: libpython3.X)"
    ),
    r"CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation": (
        "the GPU's memory is full; `nvidia-smi` lists its users; or make the model or its batch smaller"
    ),
    r"not compiled with CUDA|No CUDA GPUs|NVIDIA driver on your system"
    r"|CUDA error: (invalid device ordinal|no CUDA-capable device)": (
        "torch finds no such GPU; install a torch that is built for the driver's CUDA, and check CUDA_VISIBLE_DEVICES"
        " and the device"
    ),
    r"Cannot allocate memory|std::bad_alloc|MemoryError|oom-kill|Killed process": (
        "the machine's memory is full; make the model smaller or the server's workers fewer"
    ),
    r"No space left on device|failed to (open|create|initialize).*shm|/dev/shm": (
        "no room left, often in /dev/shm (shared memory; containers have 64 MB: --shm-size=1g)"
    ),
    r"AF_UNIX path too long|SUN_LEN|sockaddr_un": (
        "the folder for temporary files has too long a path for the server's Unix sockets; run with a shorter one, such"
        " as TMPDIR=/tmp"
    ),
    r"[Aa]ddress already in use|EADDRINUSE|failed to bind|Errno 98": (
        "another program took its port in between; run again, and do not set ports of your own"
    ),
    r"Too many open files|EMFILE|ENFILE": (
        "the server reached its limit of open files; raise the limit (`ulimit -n`), or load it with fewer users"
    ),
    r"can't start new thread|pthread_create\W*(failed|Resource)": (
        "the server reached its limit of processes and threads; raise the limit (`ulimit -u`; in a container"
        " --pids-limit), or load it with fewer users"
    ),
    r"get_config_from_handshake_server": (
        "an instance of pytriton waits only one second for another one, which is too short on a busy machine; run"
        " again, or bind one instance"
    ),
    r"unable to find backend library for backend": (
        "this Triton has no such backend; the wheel's has python and ensembles only; NVIDIA's container image has"
        " all: run pytest in it, with triton_server(server='tritonserver')"
    ),
    r"(ModuleNotFoundError|python[\d.]*): No module named '?[\w.]+|ImportError: cannot import name": (
        "a package is missing in the server's interpreter; install it there, or name the interpreter that has it:"
        " python=..."
    ),
    r"failed to load model|load failed for model|failed to load '|unable to find .*model|Error opening .*model"
    r"|must specify .*(platform|backend)|Python model file not found"
    r"|No such file or directory: '[^']*\.(pt|pth|safetensors|onnx|plan|bin)'": (
        "a model cannot be loaded; see the first error in the log; if a model's file is missing, check the paths and"
        " the model repository's layout (MODEL/config.pbtxt, MODEL/1/...)"
    ),
    r"compiled using NumPy 1\.x|numpy.*ABI|A module that was compiled using NumPy": (
        "the server needs numpy below 2; give an interpreter that has one: python=..."
    ),
    r"Permission denied|EACCES": ("a file, socket or device is not readable for this user; see the path in the log"),
}
"""Likely causes with their remedies by patterns of the log, the more special ones first; the first match is named."""


def likely_cause(log: str) -> str:
    """Find the likely cause of a failure in the end of its log; empty if unknown."""
    return next((f"likely cause: {cause}" for words, cause in CAUSES.items() if re.search(words, log)), "")


def with_likely_cause(problem: _Error) -> _Error:
    """Put the likely cause, if one is known, before the other remedies of an error."""
    cause = likely_cause(problem.log_tail)
    if cause and cause not in problem.remedies:
        problem.remedies = (cause, *problem.remedies)
    return problem


_STUCK: Final = re.compile(
    r".*(Failed to preinitialize Python stub|python_backend_stub: (error while loading|symbol lookup error)).*"
)
"""A line of Triton's log after which it does not end, but waits for the process of a Python model."""


GPU_SETTINGS: Final[Mapping[str, str]] = {
    "torch worker": "leave out torch_worker(device=...), because the worker takes the GPU by default",
    "litserve": 'LitServer(accelerator="auto"), and in setup(self, device) move the model with .to(device)',
    "mosec": 'move the model and its inputs in the Worker with .to("cuda")',
    "pytriton": 'move the model and its inputs in the bound function with .to("cuda")',
    "triton": 'instance_group [{ kind: KIND_GPU }] in config.pbtxt, and in a Python model .to("cuda")',
}
"""Setting that puts a server's model on the GPU, by the name of its kind."""


def gpu_remedy(kind: ServerKind) -> str:
    """Remedy for a server that does not use the GPU: the setting to check."""
    own = GPU_SETTINGS.get(kind.name, "give it its option for the GPU, such as --device=cuda")
    return f"check its app: {own}; torch.cuda.is_available() in its interpreter tells whether its torch finds the GPU"


DEATH_POLL_SECONDS = 0.02

FAILING_SHARE = 1 / 12
"""Share of the start timeout in which a model may answer only with status 500, before it counts as broken."""

_STILL_STARTING = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Instance:
    """A running server that has answered.

    Args:
        kind: Kind of the server.
        site: Place of the start.
        process: Its process tree; None if it was not started here.
        cold_start_seconds: From the launch of its process to its first answer; None if it was not started here.
        cold_start_parts: Parts of that time in seconds, as the server reports them.
        settings: Actual settings, with the requested ones.
        members: Pids of its processes on this machine that are not in ``process``'s tree: a server that runs already.
    """

    kind: ServerKind
    site: Site
    process: Process | None
    cold_start_seconds: float | None
    cold_start_parts: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, ServerSetting] = field(default_factory=dict)
    members: Callable[[], Collection[int]] = frozenset

    def shown(self, text: str, headers: Mapping[str, str]) -> str:
        """Text of the server, without the secrets of its variables or of these headers."""
        return without_secrets(text, self._known_with(headers))

    def excerpt(self, text: str, headers: Mapping[str, str], *, most: int) -> str:
        """The begin of the server's text, as `shown`, up to a number of characters."""
        return excerpt(text, self._known_with(headers), most=most)

    def _known_with(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Variables and headers whose values the server may repeat."""
        environment = os.environ if self.process is None else self.process.command.env
        return {**environment, **secret_headers(headers)}

    def counters(self) -> Counters | None:
        """Read its batching counters; see ``ServerKind.read_counters``."""
        return self.kind.read_counters(self.site)

    def death(self, *, grace_seconds: float = 0.0) -> str | None:
        """Return how its process ended, with the last lines of its log; None if it lives at the end of the grace.

        A server that was not started here has no known process: only its requests fail.
        """
        if self.process is None:
            return None
        deadline = Deadline.after(grace_seconds)
        while self.process.exit_status() is None:
            if deadline.expired():
                return None
            time.sleep(DEATH_POLL_SECONDS)
        error = ServerFailed(
            f"the {self.kind.name} server died under load ({self.process.describe_exit()})",
            log_tail=self.process.tail(),
        )
        return str(with_likely_cause(error))


@contextmanager
def started(
    kind: ServerKind,
    ask: Ask,
    *,
    environment: Mapping[str, str],
    log: Path,
    start_timeout_seconds: float,
    launched: Callable[[Mapping[str, str]], None] = lambda _: None,
    beside: Callable[[], None] | None = None,
) -> Iterator[Instance]:
    """Start a server, wait until its model answers, and end its whole process tree afterwards.

    Args:
        kind: The server.
        ask: The request that must be answered with a 2xx status.
        environment: Variables that every server on this device gets, such as CUDA_VISIBLE_DEVICES.
        log: File of its output.
        start_timeout_seconds: One deadline for all waits.
        launched: Called with all variables of its process, right before its start.
        beside: Called when its process runs, before its readiness is awaited: another server starts meanwhile. The cold
            start is then unknown.

    Raises:
        ServerFailed: The server died, did not answer in time, or refuses the request; or its port is taken.
    """
    deadline = Deadline.after(start_timeout_seconds)
    with claimed_ports(len(kind.ports)) as ports, owned_folder("gpuserve-", log=log) as (folder, process):
        site = Site(folder, dict(zip(kind.ports, ports, strict=True)))
        launch = kind.launch(site)
        began = time.monotonic()
        env = {**inherited_environment(os.environ), **environment, **launch.environment}
        launched(env)
        process.run(Command(launch.argv, env, launch.cwd, log))
        if beside is not None:
            beside()
            # The other server's time is not this one's.
            deadline = Deadline.after(start_timeout_seconds)
        try:
            probes = _probes(kind, site, ask, process, deadline)
            wait(probes, process, deadline, what=f"the {kind.name} server")
            cold_start_seconds = time.monotonic() - began
            _check_addresses(kind, process)
            instance = Instance(
                kind,
                site,
                process,
                None if beside is not None else cold_start_seconds,
                cold_start_parts=kind.read_cold_start(site),
                settings={
                    name: replace(setting, used=setting.used and without_secrets(setting.used, process.command.env))
                    for name, setting in kind.read_settings(site).items()
                },
            )
        except ServerFailed as problem:
            # The last status may be an answer that repeats the request.
            problem.found = without_secrets(problem.found, {**process.command.env, **secret_headers(ask.headers)})
            raise with_likely_cause(problem) from None
        yield instance


def _check_addresses(kind: ServerKind, process: Process) -> None:
    """Check that only this machine can reach it: models and servers under test are not made for a network."""
    exposed = sorted(address for address in process.listening_addresses() if not _is_loopback(address[0]))
    if exposed:
        host, port = exposed[0]
        raise ServerFailed(
            f"the {kind.name} server can be reached from other machines, which no server under test should",
            found=f"it listens on {host}:{port}",
            remedies=["let it listen on 127.0.0.1: many servers have --host=127.0.0.1 or --address=127.0.0.1"],
        )


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _probes(kind: ServerKind, site: Site, ask: Ask, process: Process, deadline: Deadline) -> list[Probe]:
    """Check that all of it is up: its ports, its health, and at last an answer of its model."""
    probes = [_stuck_probe(process), *(owned_port_probe(process, port) for port in site.ports.values())]
    probe = partial(http_probe, site.host, site.port, deadline=deadline, process=process)
    if kind.health:
        probes.append(probe(Ask("GET", kind.health)))
    probes.append(probe(ask, Readiness(kind.name, ask, process, deadline.seconds).accept))
    return probes


def _stuck_probe(process: Process) -> Probe:
    """Make a probe that fails as soon as the log tells that the server waits in vain."""

    def probe() -> None:
        tail = process.tail()
        stuck = _STUCK.search(tail)
        if stuck:
            raise ServerFailed(
                "the server waits in vain for the process of a Python model",
                found=stuck[0].strip(),
                looked=[str(process.command.log)],
                remedies=[f"run it by hand: {process.command}"],
                log_tail=tail,
            )

    return probe


@dataclass(frozen=True)
class Readiness:
    """Distinguishes a server that is still starting from one that will never accept the request.

    Args:
        name: Name of the server.
        ask: The request.
        process: Its process; None if it was not started here.
        start_timeout_seconds: Limit of its start.
        failing: Times of answers with status 500 in succession.
    """

    name: str
    ask: Ask
    process: Process | None
    start_timeout_seconds: float
    failing: list[float] = field(default_factory=list)

    def accept(self, status: int, body: bytes, location: str) -> str | None:
        """Accept 2xx, wait while the server starts, refuse the rest, and at last a model that only fails.

        Raises:
            ServerFailed: The server will never accept the request.
        """
        if 200 <= status < 300:
            return None
        if status == http.client.INTERNAL_SERVER_ERROR:
            self.failing.append(time.monotonic())
        else:
            self.failing.clear()
        seconds = FAILING_SHARE * self.start_timeout_seconds
        # The log of a server that was not started here is not known either: it has all of the time.
        fails = self.process is not None and bool(self.failing) and self.failing[-1] - self.failing[0] >= seconds
        if status in _STILL_STARTING and not fails:
            return "the model does not answer yet"
        environment = os.environ if self.process is None else self.process.command.env
        said = excerpt(repr(body), {**environment, **secret_headers(self.ask.headers)})
        detail = f" for {format_seconds(seconds)}" if fails else redirected(location)
        if fails:
            problem = "its model fails at"
            remedies = [
                "see the end of its log for the cause; a server that is only starting answers 503",
                f"if the server only needs longer, allow more: start_timeout={2 * self.start_timeout_seconds:g}",
            ]
        elif location:
            problem, remedies = "refuses", [f"a load does not follow redirects: name {location} in the test"]
        else:
            problem = "refuses"
            remedies = ["check path, body and headers of the request in the test, and the routes of the app"]
        raise ServerFailed(
            f"the {self.name} server is up, but {problem} {self.ask.method} {self.ask.path}",
            found=f"status {status}{detail}: {said}",
            looked=[] if self.process is None else [str(self.process.command.log)],
            remedies=remedies,
            # Each of the model's failures has logged the same.
            log_tail="" if self.process is None else self.process.tail(10 if fails else 30),
        )
