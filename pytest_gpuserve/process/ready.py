"""Waits until a server is up: probes that look once and report, and the wait that calls them.

A probe looks once. It returns None if all is well, else the reason, and raises `ServerFailed` if a wait cannot help.
"""

from __future__ import annotations

import http.client
import os
import select
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from pytest_gpuserve.errors import ServerEnded, ServerFailed, UsageProblem
from pytest_gpuserve.process.logs import excerpt
from pytest_gpuserve.process.ports import port_owner
from pytest_gpuserve.process.secrets import secret_headers
from pytest_gpuserve.units import Deadline, format_seconds

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

    from pytest_gpuserve.process.child import Process

_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.25
_MOST_BODY_BYTES = 1 << 20
_LEAST_ANSWER_SECONDS = 5.0
_LAST_ANSWER_SECONDS = 0.05  # so that the last look is one
_ALIVE_SECONDS = 0.1


Probe: TypeAlias = Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class Ask:
    """Request of HTTP/1.1 that is not a part of a load.

    Args:
        method: HTTP method.
        path: Path of the request.
        body: Body of the request.
        headers: Headers of the request.
    """

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Accept: TypeAlias = Callable[[int, bytes, str], str | None]
"""Judges an answer from status, body and redirect target; returns None if it is right, else the fault."""


def status_200(status: int, body: bytes, location: str) -> str | None:  # noqa: ARG001 -- the signature of `Accept`
    """Accept any answer with status 200."""
    return None if status == http.client.OK else "status 200 is needed" + redirected(location)


def redirected(location: str) -> str:
    """Addition of a ``Location`` header to a status, as part of a sentence; empty without one."""
    return f", it redirects to {location}" if location else ""


def http_probe(
    host: str,
    port: int,
    request: Ask,
    accept: Accept = status_200,
    *,
    deadline: Deadline,
    process: Process | None = None,
    tls: ssl.SSLContext | None = None,
) -> Probe:
    """Make a probe that succeeds when the server answers a request as it should.

    Args:
        accept: Judges the answer.
        deadline: End of the wait, which limits the time of an answer; see `answer_seconds`.
        process: The server; its end ends the wait for an answer. None for a server that was not started here.
        tls: Checks the certificate of a server with TLS.
    """
    # An answer may repeat the values of the server's variables and of the headers.
    environment = os.environ if process is None else process.command.env
    asked = f"{request.method} http{'s' if tls else ''}://{host}:{port}{request.path}"

    def probe() -> str | None:
        seconds = answer_seconds(deadline)
        connection = (
            http.client.HTTPConnection(host, port, timeout=seconds)
            if tls is None
            else http.client.HTTPSConnection(host, port, timeout=seconds, context=tls)
        )
        try:
            connection.request(request.method, request.path, request.body or None, dict(request.headers))
            _await_bytes(connection.sock, seconds, process)
            response = connection.getresponse()
            status, body = response.status, response.read(_MOST_BODY_BYTES)
        except TimeoutError:
            return f"{asked} was not answered in {format_seconds(seconds)}"
        except ssl.SSLCertVerificationError as error:
            raise ServerFailed(
                f"{asked}: the server's certificate is not to be trusted",
                found=error.verify_message,
                remedies=["name the certificates that sign it: ca_file=; it is always checked"],
            ) from None
        except (OSError, http.client.HTTPException) as error:
            return f"{asked} failed: {type(error).__name__}: {error}"
        finally:
            connection.close()
        wrong = accept(status, body, response.headers.get("Location", ""))
        if wrong is None:
            return None
        shown = excerpt(repr(body), {**environment, **secret_headers(request.headers)})
        return f"{asked} answered status {status}, body {shown}: {wrong}"

    return probe


def answer_seconds(deadline: Deadline) -> float:
    """Time limit of a request that is sent now: half of the time until the deadline.

    So a slow answer is waited for, and a request that got lost during the server's start is sent again.
    """
    left = deadline.remaining()
    return max(left / 2, min(left, _LEAST_ANSWER_SECONDS), _LAST_ANSWER_SECONDS)


def _await_bytes(link: socket.socket, seconds: float, process: Process | None) -> None:
    """Wait for the begin of an answer, while the server exists: its remains may hold the connection open."""
    end = Deadline.after(seconds)
    while not select.select([link], [], [], min(_ALIVE_SECONDS, end.remaining()))[0]:
        end.allowed()
        if process is not None and process.exit_status() is not None:
            raise ConnectionAbortedError("it has ended")


def owned_port_probe(process: Process, port: int) -> Probe:
    """Make a probe that succeeds when only the process's own tree listens on the port.

    It must come before all other probes, because another server's answer could be taken for this one's. Its
    `ServerFailed` names the foreign process.
    """

    def own() -> set[int]:
        return {member.pid for member in process.tree()}

    def probe() -> str | None:
        # Read again, because one of its own processes may have ended in between.
        stranger = port_owner(port, besides=own) and port_owner(port, besides=own)
        if stranger is not None:
            raise ServerFailed(
                f"a foreign server answers on port {port}, which is meant for {process.command}",
                found=stranger,
                looked=[f"TCP listeners reached by 127.0.0.1:{port}"],
                remedies=["run again: each start takes other free ports", "or end that process"],
                log_tail=process.tail(),
            )
        addresses = process.listening_addresses()
        if port in {number for _, number in addresses}:
            return None
        elsewhere = ", ".join(f"{host}:{number}" for host, number in sorted(addresses))
        where = f"; it listens on {elsewhere}: has it been told its port?" if elsewhere else ""
        return f"the server does not listen on port {port} yet{where}"

    return probe


def wait(probes: Sequence[Probe], process: Process | None, deadline: Deadline, *, what: str) -> None:
    """Wait until all probes succeed.

    Args:
        probes: Called in order, up to the first that sees a problem.
        process: The server; its exit, with any code, ends the wait at once. It is not stopped here. None for a server
            that was not started here.
        deadline: End of the wait; a probe that is running then may finish.
        what: Name of the server for messages, such as ``mosec server apps/echo.py``.

    Raises:
        ServerFailed: The process exited or the deadline passed first; the text has the last observation and the log's
            tail.
    """
    pause_seconds = _FIRST_PAUSE_SECONDS
    while True:
        seen = None
        if process is None or process.exit_status() is None:
            seen = next((reason for probe in probes if (reason := probe()) is not None), None)
        # Checked after the probes too, because the answer may have been the last one of a dying server.
        if process is not None and process.exit_status() is not None:
            raise _exited(process, what)
        if seen is None:
            return
        if deadline.expired():
            raise _late(process, deadline, what, seen)
        (time.sleep if process is None else process.wait)(min(pause_seconds, deadline.remaining()))
        pause_seconds = min(1.5 * pause_seconds, _LONGEST_PAUSE_SECONDS)


def _exited(process: Process, what: str) -> ServerEnded:
    remedies = [f"read its whole log: {process.command.log}", f"run it by hand: {process.command}"]
    if process.exit_status() == 0:
        daemon = "keep the server in the foreground: leave out any option that makes it a daemon"
        remedies.insert(0, f"see the end of its log for an error; without one, {daemon}")
    return ServerEnded(
        f"{what} ended before it was ready",
        found=process.describe_exit(),
        looked=[str(process.command.log)],
        remedies=remedies,
        log_tail=process.tail(),
    )


def _late(process: Process | None, deadline: Deadline, what: str, seen: str) -> ServerFailed:
    remedies = [f"if the server only needs longer, allow more: start_timeout={2 * deadline.seconds:g}"]
    summary = f"{what} was not ready in {format_seconds(deadline.seconds)}"
    if process is None:
        return ServerFailed(summary, found=seen, remedies=remedies)
    return ServerFailed(
        summary,
        found=seen,
        looked=[str(process.command.log)],
        remedies=[*remedies, f"read its whole log: {process.command.log}", f"run it by hand: {process.command}"],
        log_tail=process.tail(),
    )


@lru_cache
def verified_tls(ca_file: str) -> ssl.SSLContext:
    """Make the context that checks a server's certificate and name; cached, because the system's take long to read.

    Args:
        ca_file: Certificates to trust instead of the system's; empty for those.

    Raises:
        UsageProblem: The certificates cannot be read.
    """
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as problem:
        raise UsageProblem(
            "the certificates to trust cannot be read",
            found=str(problem),
            looked=[ca_file],
            remedies=["give a PEM file as ca_file=, by an absolute path or one relative to the test file"],
        ) from None
