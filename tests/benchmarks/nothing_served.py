"""Loads on a server that does nothing, so that what is measured is the client."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.wire import Endpoint, Plan
from pytest_gpuserve.process.command_line import module_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.load.schedule import Schedule

TICK_NS: Final = 100_000_000
TIMEOUT_NS: Final = 10_000_000_000
ANSWER_BYTES: Final = 64

# Of one length whatever the port will be: the server counts bytes.
PAYLOAD: Final = Request("GET", "/").to_bytes("127.0.0.1", 80)


@dataclass(frozen=True)
class NullServer:
    """A running server that answers everything at once.

    Args:
        port: Where.
        pid: Its process.
    """

    port: int
    pid: int


@contextmanager
def null_server() -> Iterator[NullServer]:
    """Run one for the block."""
    command = module_command("pytest_gpuserve.load.null_server", str(len(PAYLOAD)), str(ANSWER_BYTES))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield NullServer(int(process.stdout.readline()), process.pid)
        finally:
            process.stdin.close()


def plan(server: NullServer, schedule: Schedule, *, requests: int | None = None, seed: int = 1) -> Plan:
    """The plan of a load on it.

    Args:
        server: It.
        schedule: When requests are sent.
        requests: After so many it ends; None for no end.
        seed: Of the schedule.
    """
    return Plan(
        endpoint=Endpoint("http", "127.0.0.1", server.port),
        payloads=((PAYLOAD,),),
        schedule=schedule,
        tick_ns=TICK_NS,
        timeout_ns=TIMEOUT_NS,
        seed=seed,
        requests=requests,
        keep_answers="none",
    )
