"""Single requests to a running server, outside a load, with the bytes that a load sends; they are not measured."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuserve.errors import GpuserveError, ServerFailed
from pytest_gpuserve.load.engine.http1 import ResponseParser
from pytest_gpuserve.load.engine.transport import MalformedResponse
from pytest_gpuserve.load.kserve import decode_answer, extra
from pytest_gpuserve.load.request import check_answer
from pytest_gpuserve.process.logs import begin_of
from pytest_gpuserve.process.ready import verified_tls
from pytest_gpuserve.servers.instance import with_likely_cause
from pytest_gpuserve.units import Deadline, format_seconds

if TYPE_CHECKING:
    from pytest_gpuserve.load.kserve import Tensors
    from pytest_gpuserve.load.request import Request
    from pytest_gpuserve.load.wire import Endpoint, Tls
    from pytest_gpuserve.servers.instance import Instance

ANSWER_SECONDS: Final = 60.0
"""Deadline that only a hanging server reaches."""

LAST_LOOK_SECONDS: Final = 0.1
"""Time to read the answer of a server that did not read its request to the end: the answer is here already."""

DEATH_SECONDS: Final = 1.0
"""Time after which a server that hung up has ended, if it was dying."""

TEXT_SHOWN: Final = 1000
"""Characters of the server's answer that an error shows; ``body`` holds all of a refusal."""

_RECEIVED_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Answer:
    """A good answer.

    Args:
        body: The answer: an HTTP body or a gRPC message.
    """

    body: bytes

    @property
    def tensors(self) -> Tensors:
        """The outputs of an inference, as arrays by name.

        Raises:
            ValueError: The answer is not one of KServe v2; the text is one line.
        """
        return decode_answer(self.body)


class Refused(GpuserveError):
    """The server answered with an error.

    Args:
        summary: The request that failed.
        found: The start of the server's answer.
        status: HTTP status; None over gRPC.
        body: The whole answer: an HTTP body, or the error's text in UTF-8.
    """

    def __init__(self, summary: str, *, found: str, status: int | None, body: bytes) -> None:
        super().__init__(summary, found=found)
        self.status = status
        self.body = body


class WrongAnswer(GpuserveError):
    """The server's answer is not what ``expect=`` says.

    Args:
        summary: The request.
        found: Difference between the answer and the expected one.
        body: The answer.
    """

    def __init__(self, summary: str, *, found: str, body: bytes) -> None:
        super().__init__(summary, found=found)
        self.body = body


class _Reply(NamedTuple):
    """A reply, good or not; the status is that of HTTP."""

    is_good: bool
    body: bytes
    status: int | None = None


def send_once(
    running: Instance, endpoint: Endpoint, request: Request, payload: bytes, timeout_seconds: float
) -> Answer:
    """Send one request, serialised as ``payload``, to an endpoint of a running server; see ``Target.ask``."""
    what = f"{request.method} {request.path}"
    try:
        if endpoint.protocol == "grpc":
            reply = _ask_grpc(endpoint, payload, timeout_seconds)
        else:
            reply = _ask_http(endpoint, payload, timeout_seconds)
    except (OSError, MalformedResponse) as problem:
        raise _unanswered(running, request, what, problem, timeout_seconds) from None
    if not reply.is_good:
        text = begin_of(reply.body).decode(errors="replace")
        said = running.excerpt(text, request.headers, most=TEXT_SHOWN)
        raise Refused(
            f"the {running.kind.name} server refuses {what}",
            found=": ".join(part for part in (reply.status and f"status {reply.status}", said) if part),
            status=reply.status,
            body=reply.body,
        )
    wrong = check_answer(request.expect, reply.body)
    if wrong is not None:
        found = running.shown(wrong, request.headers)
        raise WrongAnswer(f"the {running.kind.name} server answers {what} wrongly", found=found, body=reply.body)
    return Answer(reply.body)


def _ask_http(endpoint: Endpoint, payload: bytes, timeout_seconds: float) -> _Reply:
    deadline = Deadline.after(timeout_seconds)
    with (
        socket.create_connection((endpoint.host, endpoint.port), timeout_seconds) as plain,
        _secured(plain, endpoint.tls, deadline) as link,
    ):
        # A server that does not read all of a request may still have answered it.
        with suppress(OSError):
            _send(link, payload, deadline)
        if deadline.expired():
            deadline = Deadline.after(LAST_LOOK_SECONDS)
        parser = ResponseParser()
        while True:
            link.settimeout(deadline.allowed())
            data = link.recv(_RECEIVED_BYTES)
            parsed = parser.feed(data) if data else parser.end()
            if parsed is not None:
                return _Reply(is_good=200 <= parsed.status < 300, body=parsed.body, status=parsed.status)
            if not data:
                raise ConnectionError("the server hung up before its answer was complete")


def _secured(plain: socket.socket, tls: Tls | None, deadline: Deadline) -> socket.socket:
    if tls is None:
        return plain
    plain.settimeout(deadline.allowed())
    return verified_tls(tls.ca_file).wrap_socket(plain, server_hostname=tls.server_name)


def _send(link: socket.socket, payload: bytes, deadline: Deadline) -> None:
    """Send all of it; over TLS ``sendall`` would restart its timeout with each part."""
    left = memoryview(payload)
    while left:
        link.settimeout(deadline.allowed())
        left = left[link.send(left) :]


def _ask_grpc(endpoint: Endpoint, message: bytes, timeout_seconds: float) -> _Reply:
    grpc = extra("grpc")
    # As a load does: answers of any size, and no proxy.
    options = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
    with _channel(grpc, endpoint, options) as channel:
        try:
            return _Reply(is_good=True, body=channel.unary_unary(endpoint.rpc)(message, timeout=timeout_seconds))
        except grpc.RpcError as problem:
            code, said = problem.code(), str(problem.details())
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        raise TimeoutError
    if code is grpc.StatusCode.UNAVAILABLE:
        raise ConnectionError(said)
    return _Reply(is_good=False, body=f"{code.name}: {said}".encode())


def _channel(grpc: Any, endpoint: Endpoint, options: list[tuple[str, int]]) -> Any:  # noqa: ANN401 -- a module that need not be installed
    if endpoint.tls is None:
        return grpc.insecure_channel(endpoint.authority, options)
    roots = Path(endpoint.tls.ca_file).read_bytes() if endpoint.tls.ca_file else None
    return grpc.secure_channel(endpoint.authority, grpc.ssl_channel_credentials(roots), options)


def _unanswered(
    running: Instance, request: Request, what: str, problem: Exception, timeout_seconds: float
) -> ServerFailed:
    process = running.process
    is_late = isinstance(problem, TimeoutError)
    found = f"{type(problem).__name__}: {problem}"
    if is_late:
        found = f"no whole answer in {format_seconds(timeout_seconds)}"
    if process is not None and process.wait(0.0 if is_late else DEATH_SECONDS) is not None:
        found = f"it has ended: {process.describe_exit()}"
        is_late = False
    error = ServerFailed(
        f"the {running.kind.name} server does not answer {what}",
        found=running.excerpt(found, request.headers, most=TEXT_SHOWN),
        remedies=[f"if it only needs longer, allow more: ask(timeout={2 * timeout_seconds:g})"] if is_late else [],
        log_tail="" if process is None else process.tail(),
    )
    return with_likely_cause(error)
