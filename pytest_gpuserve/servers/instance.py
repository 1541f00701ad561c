"""A fresh start of a server: from free ports to nothing left behind."""

from __future__ import annotations

import http.client
import ipaddress
import os
import re
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process.child import Command, Process, owned_folder
from pytest_gpuserve.process.container import container_command, member_pids
from pytest_gpuserve.process.deadline import Deadline
from pytest_gpuserve.process.logs import SHOWN_CHARACTERS, excerpt
from pytest_gpuserve.process.ports import claimed_ports, port_owner
from pytest_gpuserve.process.ready import (
    HttpRequest,
    Patience,
    Probe,
    all_of,
    http_probe,
    owned_port_probe,
    redirected,
    socket_probe,
    wait,
)
from pytest_gpuserve.process.secrets import secret_headers, without_secrets
from pytest_gpuserve.servers.base import ContainerLaunch, Launch, Site, inherited_environment
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from pytest_gpuserve.measure.counters import Counters, ServerSetting
    from pytest_gpuserve.process.child import SupervisorProcess
    from pytest_gpuserve.process.container import Container
    from pytest_gpuserve.servers.base import Ask, ServerKind

if TYPE_CHECKING:
    from typing import TypeVar

    from pytest_gpuserve.errors import GpuserveError

    _Error = TypeVar("_Error", bound=GpuserveError)


class Cause(NamedTuple):
    """A likely cause.

    Args:
        words: What a log says then.
        help: What it most likely is, and what helps.
    """

    words: re.Pattern[str]
    help: str


CAUSES: Final = (
    Cause(
        re.compile(
            r"libpython3[\w.]*: cannot open shared object|_recursion_count|python_backend_stub.*(undefined|shared)"
        ),
        "likely cause: Triton's Python stub did not find the libpython of the interpreter; give an interpreter that was"
        " built with --enable-shared: python=..., or install its library (Debian: libpython3.X)",
    ),
    Cause(
        re.compile(r"CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"),
        "likely cause: the GPU's memory is full; see `nvidia-smi` for who has it, or make the model or its batch"
        " smaller",
    ),
    Cause(
        re.compile(r"Cannot allocate memory|std::bad_alloc|MemoryError|oom-kill|Killed process"),
        "likely cause: the machine's memory is full; make the model smaller or the server's workers fewer",
    ),
    Cause(
        re.compile(r"No space left on device|failed to (open|create|initialize).*shm|/dev/shm"),
        "likely cause: no room left, often in /dev/shm (shared memory; containers have 64 MB: --shm-size=1g)",
    ),
    Cause(
        re.compile(r"[Aa]ddress already in use|EADDRINUSE|failed to bind|Errno 98"),
        "likely cause: another program took its port in between; run again, and leave out fixed ports of your own",
    ),
    Cause(
        re.compile(r"Too many open files|EMFILE|ENFILE"),
        "likely cause: the server may have no more open files; raise the limit (`ulimit -n`), or load it with fewer"
        " users",
    ),
    Cause(
        re.compile(r"get_config_from_handshake_server"),
        "likely cause: an instance of pytriton gives another one second to answer, and on a busy machine that is too"
        " short; run again, or bind one instance",
    ),
    Cause(
        re.compile(r"unable to find backend library for backend"),
        "likely cause: this Triton has no such backend; the wheel's has python and ensembles only, the vendor's"
        " container has all: image=...",
    ),
    Cause(
        re.compile(
            r"failed to load model|load failed for model|failed to load '|unable to find .*model|Error opening .*model"
            r"|must specify .*(platform|backend)|No such file or directory: '[^']*\.(pt|pth|safetensors|onnx|plan|bin)'"
        ),
        "likely cause: a model's file is missing or cannot be read; see the first error in the log, and check the paths"
        " and the model repository's layout (MODEL/config.pbtxt, MODEL/1/...)",
    ),
    Cause(
        re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'|ImportError: cannot import name"),
        "likely cause: a package is missing in the server's interpreter; install it there, or name the interpreter that"
        " has it: python=...",
    ),
    Cause(
        re.compile(r"compiled using NumPy 1\.x|numpy.*ABI|A module that was compiled using NumPy"),
        "likely cause: the server needs numpy below 2; give an interpreter that has one: python=...",
    ),
    Cause(
        re.compile(r"Permission denied|EACCES"),
        "likely cause: a file, socket or device is not readable for this user; see the path in the log",
    ),
)
"""The first that fits is named; the more special ones come first."""


def likely_cause(log: str) -> str:
    """Name the likely cause of a failure by the end of its log; empty if it is none of the known ones."""
    return next((cause.help for cause in CAUSES if cause.words.search(log)), "")


def with_likely_cause(problem: _Error) -> _Error:
    """Put the likely cause, if one is known, before the other remedies of an error."""
    cause = likely_cause(problem.log_tail)
    if cause and cause not in problem.remedies:
        problem.remedies = (cause, *problem.remedies)
    return problem


GPU_SETTINGS: Final[Mapping[str, str]] = {
    "torch worker": "leave out torch_worker(device=...), which takes the GPU by itself",
    "litserve": 'LitServer(accelerator="auto"), and in setup(self, device) move the model with .to(device)',
    "mosec": 'move the model and its inputs in the Worker with .to("cuda")',
    "pytriton": 'move the model and its inputs in the bound function with .to("cuda")',
    "triton": 'instance_group [{ kind: KIND_GPU }] in config.pbtxt, and in a Python model .to("cuda")',
}
"""What puts a server's model on the GPU, by the name of its kind."""


def gpu_remedy(kind: ServerKind) -> str:
    """Say which setting of a server to check if it does not use the GPU."""
    own = GPU_SETTINGS.get(kind.name, "give it its option for the GPU, such as --device=cuda")
    return f"check its app: {own}; torch.cuda.is_available() in its interpreter says whether its torch finds the GPU"


def check_length(path: Path, longest: int, summary: str) -> None:
    """See that the path of a socket, or of the folder of some, has no more bytes than it may.

    Args:
        path: In this session's folder for temporary files.
        longest: So many it may have.
        summary: What is told if it has more.

    Raises:
        ServerFailed: It has more.
    """
    length = len(os.fsencode(path))
    if length > longest:
        raise ServerFailed(
            summary,
            found=f"{path} has {length}",
            looked=["TMPDIR", tempfile.gettempdir()],
            remedies=["run with a shorter folder for temporary files, such as TMPDIR=/tmp"],
        )


DEATH_POLL_SECONDS = 0.02

QUEUE_CHARACTERS = 1000
"""Of what a worker says of a request that it refuses, which is as a rule a traceback."""

FAILING_SHARE = 1 / 12
"""Share of the start timeout in which a model may answer with status 500 and nothing else, before it is broken."""

_STILL_STARTING = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Instance:
    """A server that runs and has answered.

    Args:
        kind: What it is.
        site: Where it lives.
        process: Its process tree; None where somebody else runs it.
        cold_start_seconds: From the launch of its process to its first answer; None where it was not started by us.
        cold_start_parts: What it says that this time went to, in seconds.
        settings: How it is really set up, beside what it was asked for.
        members: Tells the pids of its processes on this machine that are not in ``process``'s tree, such as those of a
            container.
    """

    kind: ServerKind
    site: Site
    process: Process | None
    cold_start_seconds: float | None
    cold_start_parts: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, ServerSetting] = field(default_factory=dict)
    members: Callable[[], Collection[int]] = frozenset

    def shown(self, text: str, headers: Mapping[str, str]) -> str:
        """Something that it said, without the secrets that it was given by its variables or these headers."""
        return without_secrets(text, self._known_with(headers))

    def excerpt(self, text: str, headers: Mapping[str, str], *, most: int) -> str:
        """The begin of something that it said, as `shown`, in so many characters."""
        return excerpt(text, self._known_with(headers), most=most)

    def _known_with(self, headers: Mapping[str, str]) -> dict[str, str]:
        """All that it may repeat of its variables and of these headers."""
        environment = os.environ if self.process is None else self.process.command.env
        return {**environment, **secret_headers(headers)}

    def counters(self) -> Counters | None:
        """Read its batching counters; see ``ServerKind.read_counters``."""
        return self.kind.read_counters(self.site)

    def death(self, *, grace_seconds: float = 0.0) -> str | None:
        """Return how its process ended, with the last lines of its log; None if it lives at the end of the grace.

        Of a server that somebody else runs nothing is known: its requests fail.
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
    gpus: tuple[str, ...] = (),
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
        gpus: UUIDs of the device's GPUs, for a server in a container.
        log: Where its output goes.
        start_timeout_seconds: One deadline for all waits.
        launched: Told all the variables of its process, right before that is started.
        beside: Called once its process runs, and before it is waited for: another server starts at the same time. How
            long a cold start takes is not known then.

    Raises:
        ServerFailed: It died, did not answer in time, refuses the request, or a port is somebody else's.
    """
    deadline = Deadline.after(start_timeout_seconds)
    with owned_folder("gpuserve-", log=log) as (folder, supervisor), claimed_ports(len(kind.ports)) as ports:
        site = Site(folder, dict(zip(kind.ports, ports, strict=True)), start_timeout_seconds=start_timeout_seconds)
        launch = kind.launch(site)
        if isinstance(launch, ContainerLaunch):
            launch = replace(launch, container=on_device(launch.container, environment, gpus))
        _check_ports(kind, site)
        began = time.monotonic()
        process, members = _start(launch, site, environment, supervisor, launched)
        with process:
            if beside is not None:
                beside()
                # What the other one took is not this one's.
                deadline = Deadline.after(start_timeout_seconds)
            try:
                probe = _probe(site, _Accept(kind, ask, process, start_timeout_seconds), members, deadline)
                wait(probe, process, deadline, what=f"the {kind.name} server's answer to {ask.method} {ask.path}")
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
                    members=members,
                )
            except ServerFailed as problem:
                # What was seen last may be an answer that repeats the request.
                problem.found = without_secrets(problem.found, {**process.command.env, **secret_headers(ask.headers)})
                raise with_likely_cause(problem) from None
            yield instance


def _check_ports(kind: ServerKind, site: Site) -> None:
    """The ports were free a moment ago; whoever took one since must not be mistaken for our server."""
    for name, port in site.ports.items():
        owner = port_owner(port)
        if owner is not None:
            raise ServerFailed(
                f"port {port} ({name}) was taken before the {kind.name} server could start",
                found=owner,
                remedies=["run again: each start takes other free ports"],
            )


def on_device(container: Container, environment: Mapping[str, str], gpus: tuple[str, ...]) -> Container:
    """Give a container the device's GPUs and variables.

    Args:
        environment: As for `started`; a container counts its GPUs from 0, so that an index in it would be wrong there.
        gpus: UUIDs.
    """
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    return replace(container, env={**environment, **visible, **container.env}, gpus=gpus)


def _start(
    launch: Launch | ContainerLaunch,
    site: Site,
    environment: Mapping[str, str],
    supervisor: SupervisorProcess,
    launched: Callable[[Mapping[str, str]], None],
) -> tuple[Process, Callable[[], Collection[int]]]:
    """Start it, and say what tells the pids that are its own without being in its tree."""
    inherited = inherited_environment(os.environ)
    if isinstance(launch, Launch):
        env = {**inherited, **environment, **launch.environment}
        launched(env)
        return Process.start(Command(launch.argv, env, launch.cwd, supervisor.log), supervisor=supervisor), frozenset
    run = container_command(launch.engine, launch.container, client_env=inherited)
    launched(run.env)
    process = Process.start(
        Command(run.argv, run.env, site.folder, supervisor.log), after=run.after, supervisor=supervisor
    )
    return process, member_pids(launch.engine, run)


def _check_addresses(kind: ServerKind, process: Process) -> None:
    """See that nobody but this machine can reach it: models and servers under test are not made for a network."""
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


def _probe(site: Site, accept: _Accept, members: Callable[[], Collection[int]], deadline: Deadline) -> Probe:
    """What tells that all of it is up: its ports, its health, and at last an answer of its model."""
    kind, ask, process = accept.kind, accept.ask, accept.process
    patience = Patience(deadline, lambda: process.exit_status() is None)
    request = HttpRequest(path=ask.path, method=ask.method, body=ask.body, headers=ask.headers)
    if kind.transport == "queue":
        return socket_probe(site.queue, request, accept.queued, patience=patience)
    probes = [owned_port_probe(process, port, also=members) for port in site.ports.values()]
    probe = partial(http_probe, site.host, site.port, patience=patience, environment=process.command.env)
    if kind.health:
        probes.append(probe(HttpRequest(kind.health)))
    probes.append(probe(request, accept.http_status))
    return all_of(*probes)


def verdict_on_status(
    name: str,
    ask: Ask,
    status: int,
    body: bytes,
    *,
    location: str = "",
    log_tail: str = "",
    environment: Mapping[str, str] = os.environ,
) -> str | None:
    """Accept 2xx (None), say what a starting server answered, and refuse the rest.

    Args:
        name: What the server is called.
        ask: The request.
        status: Of the answer.
        body: Of the answer.
        location: Where it redirects to; empty for nowhere.
        log_tail: The end of the server's log.
        environment: The server's variables, of which it may have repeated a secret.

    Raises:
        ServerFailed: It will never take the request.
    """
    if 200 <= status < 300:
        return None
    said = f"status {status}{redirected(location)}: {_shown(repr(body), ask, environment)}"
    if status in _STILL_STARTING:
        return said
    raise ServerFailed(
        f"the {name} server is up, but refuses {ask.method} {ask.path}",
        found=said,
        remedies=[
            f"a load does not follow redirects: name {location} in the test"
            if location
            else "check path, body and headers of the request in the test, and the routes of the app"
        ],
        log_tail=log_tail,
    )


def _shown(answer: str, ask: Ask, environment: Mapping[str, str], *, most: int = SHOWN_CHARACTERS) -> str:
    return excerpt(answer, {**environment, **secret_headers(ask.headers)}, most=most)


@dataclass(frozen=True)
class _Accept:
    """Tells a server that is still starting from one that will never take the request."""

    kind: ServerKind
    ask: Ask
    process: Process
    start_timeout_seconds: float
    failing: list[float] = field(default_factory=list)

    def http_status(self, status: int, body: bytes, location: str) -> str | None:
        """Accept 2xx, wait at what a starting server says, refuse the rest, and at last a model that only fails."""
        environment = self.process.command.env
        seconds = FAILING_SHARE * self.start_timeout_seconds
        if status != http.client.INTERNAL_SERVER_ERROR:
            self.failing.clear()
        elif self.failing and time.monotonic() - self.failing[0] > seconds:
            raise ServerFailed(
                f"the {self.kind.name} server is up, but its model fails at {self.ask.method} {self.ask.path}",
                found=f"status {status} for {format_seconds(seconds)}: {_shown(repr(body), self.ask, environment)}",
                remedies=[
                    "see the end of its log for why; a server that is only starting answers 503",
                    f"if this one only needs longer, allow more: start_timeout={2 * self.start_timeout_seconds:g}",
                ],
                log_tail=self.process.tail(),
            )
        else:
            self.failing.append(time.monotonic())
        return verdict_on_status(
            self.kind.name,
            self.ask,
            status,
            body,
            location=location,
            log_tail=self.process.tail(),
            environment=environment,
        )

    def queued(self, status: int, body: bytes, location: str) -> str | None:
        """Accept what is no error; a worker listens when its model is there, so an error is one of the request."""
        del location
        if status == http.client.OK:
            return None
        raise ServerFailed(
            f"the {self.kind.name} is up, but refuses the request",
            found=_shown(body.decode(errors="replace"), self.ask, self.process.command.env, most=QUEUE_CHARACTERS),
            remedies=["check names, types and shapes of the inputs in the test"],
            log_tail=self.process.tail(),
        )
