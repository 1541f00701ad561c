"""A fresh start of a server: from a free port to nothing left behind."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process.child import Command, Process
from pytest_gpuserve.process.deadline import Deadline
from pytest_gpuserve.process.ports import free_port, port_owner
from pytest_gpuserve.process.ready import HttpRequest, all_of, http_probe, owned_port_probe, wait

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpuserve.servers.base import Ask, Counters, ServerKind

STRIPPED_PREFIXES = ("MOSEC_",)
"""Inherited variables of these names would change a server behind the baseline's back; ``env=`` may set them."""

HOST = "127.0.0.1"

PROBE_SECONDS = 5.0
"""How long one readiness request may take before it is sent again."""

DEATH_POLL_SECONDS = 0.02

_STILL_STARTING = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Instance:
    """A server that runs and has answered.

    Args:
        kind: What it is.
        process: Its process tree.
        port: Its loopback port.
        cold_start_seconds: From the launch of its process to its first answer.
    """

    kind: ServerKind
    process: Process
    port: int
    cold_start_seconds: float

    def counters(self) -> Counters | None:
        """Read its batching counters; see ``ServerKind.read_counters``."""
        return self.kind.read_counters(self.port)

    def death(self, *, grace_seconds: float = 0.0) -> str | None:
        """Return how its process ended, with the last lines of its log; None if it lives at the end of the grace."""
        deadline = Deadline.after(grace_seconds)
        while self.process.exit_status() is None:
            if deadline.expired():
                return None
            time.sleep(DEATH_POLL_SECONDS)
        error = ServerFailed(
            f"the {self.kind.name} server died under load ({self.process.describe_exit()})",
            log_tail=self.process.tail(),
        )
        return str(error)


@contextmanager
def started(
    kind: ServerKind, ask: Ask, *, environment: Mapping[str, str], log: Path, start_timeout_seconds: float
) -> Iterator[Instance]:
    """Start a server, wait until its model answers, and end its whole process tree afterwards.

    Args:
        kind: The server.
        ask: The request that must be answered with a 2xx status.
        environment: Variables that every server on this device gets, such as CUDA_VISIBLE_DEVICES.
        log: Where its output goes.
        start_timeout_seconds: One deadline for all waits.

    Raises:
        ServerFailed: It died, did not answer in time, refuses the request, or the port is somebody else's.
    """
    deadline = Deadline.after(start_timeout_seconds)
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="gpuserve-"))
    try:
        launch = kind.launch(port, folder)
    except BaseException:
        folder.rmdir()
        raise
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(STRIPPED_PREFIXES)}
    # The port was free a moment ago; whoever took it since must not be mistaken for our server.
    owner = port_owner(port)
    if owner is not None:
        folder.rmdir()
        raise ServerFailed(f"port {port} was taken before the {kind.name} server could start", found=owner)
    command = Command(
        argv=launch.argv,
        env={**inherited, **environment, **launch.environment},
        cwd=launch.cwd,
        log=log,
    )
    began = time.monotonic()
    with Process.start(command, owned_folders=[folder]) as process:
        probe = all_of(
            owned_port_probe(process, port),
            http_probe(
                HOST,
                port,
                HttpRequest(path=ask.path, method=ask.method, body=ask.body, headers=ask.headers),
                _Accept(kind, ask, process),
                timeout_seconds=min(PROBE_SECONDS, start_timeout_seconds),
            ),
        )
        wait(probe, process, deadline, what=f"the {kind.name} server's answer to {ask.method} {ask.path}")
        yield Instance(kind, process, port, cold_start_seconds=time.monotonic() - began)


@dataclass(frozen=True)
class _Accept:
    """Tells a server that is still starting from one that will never take the request."""

    kind: ServerKind
    ask: Ask
    process: Process

    def __call__(self, status: int, body: bytes) -> str | None:
        if 200 <= status < 300:
            return None
        if status in _STILL_STARTING:
            return f"status {status}: {body[:200]!r}"
        raise ServerFailed(
            f"the {self.kind.name} server is up, but refuses {self.ask.method} {self.ask.path}",
            found=f"status {status}: {body[:200]!r}",
            remedies=["check path, body and headers of the request in the test, and the routes of the app"],
            log_tail=self.process.tail(),
        )
