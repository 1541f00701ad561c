"""A single request to a running server: its answer, its refusal, or its failure, over each transport."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_gpuserve.errors import GpuserveError, ServerFailed, UsageProblem
from pytest_gpuserve.experiment.handle import ServerHandle, Starter, Target
from pytest_gpuserve.experiment.single_request import TEXT_SHOWN, Refused, WrongAnswer
from pytest_gpuserve.process.ports import free_port
from pytest_gpuserve.process.ready import Ask
from pytest_gpuserve.servers.base import ServerKind
from pytest_gpuserve.servers.instance import Instance
from pytest_gpuserve.servers.remote import RemoteServer
from tests.fakes.http_server import BIG, BODY, Serving, make_certificates, serving

GUARD_SECONDS = 30.0

PATIENCE_SECONDS = 0.3

BIG_ITEMS = 1 << 20
"""Of 8 bytes: more than any socket keeps."""


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    """A server whose answer depends on the path."""
    with serving() as there:
        yield there


def running_at(port: int, **more: Any) -> tuple[ServerHandle, Instance]:  # noqa: ANN401 -- fields of `RemoteServer`
    """A server that runs already, with the result of a start."""
    kind = RemoteServer(more.pop("host", "127.0.0.1"), port, **more)
    return ServerHandle(kind, cast("Starter", None)), Instance(kind, kind.site(), None, None)


def infer(handle: ServerHandle, items: int = 3, **options: Any) -> Target:  # noqa: ANN401 -- of `infer`
    """An inference of so many zeros."""
    return handle.infer({"X": pytest.importorskip("numpy").zeros((1, items))}, **options)


# -- answers


@pytest.mark.parametrize(
    ("path", "body"),
    [("/chunked", BODY), ("/drip", BODY), ("/until-close", BODY), ("/big", BIG)],
)
def test_an_answer_is_read_whole(server: Serving, path: str, body: bytes) -> None:
    """It is parsed as under load: however it is framed, and however large, its body is what the server said."""
    handle, running = running_at(server.port)
    assert handle.post(path, body=b"fox", expect=body).ask(running).body == body


def test_tls_is_checked(tmp_path: Path) -> None:
    """A trusted server answers, and one of an unknown authority gets no request."""
    certificates = make_certificates(tmp_path)
    with serving(certificate=certificates.server_file) as server:
        handle, running = running_at(server.port, host="localhost", tls=True, ca_file=certificates.ca_file)
        assert handle.get("/ok").ask(running).body == BODY
        handle, running = running_at(server.port, host="localhost", tls=True)
        with pytest.raises(ServerFailed, match="certificate"):
            handle.get("/ok").ask(running)


# -- refusals, wrong answers, and none


@pytest.mark.parametrize(
    ("path", "error", "found"),
    [
        ("/unavailable", Refused, "status 503: busy"),
        ("/moved", Refused, "status 302"),
        ("/wrong?every=1", WrongAnswer, "expected b'right', got b'wrong'"),
        *((path, ServerFailed, "") for path in ("/hang-up", "/reset", "/cut-body", "/garbage")),
        ("/never", ServerFailed, "no whole answer in 300 ms"),
    ],
)
def test_what_is_no_good_answer_is_told(server: Serving, path: str, error: type[GpuserveError], found: str) -> None:
    """Any status but 2xx is a refusal; an incomplete answer, or one without HTTP, is a failed server."""
    handle, running = running_at(server.port)
    with pytest.raises(error) as caught:
        handle.get(path, expect=BODY).ask(running, timeout=PATIENCE_SECONDS if path == "/never" else GUARD_SECONDS)
    told = caught.value
    assert found in str(told)
    if isinstance(told, Refused):
        assert told.found == found
        assert (f"status {told.status}", told.body) == (found[:10], found[12:].encode())
    elif isinstance(told, WrongAnswer):
        assert told.body == b"wrong"
    else:
        assert f"does not answer GET {path}" in str(told)


def test_the_requests_own_check_and_an_early_answer_count(server: Serving) -> None:
    """A wrong answer is reported in the check's words; a server that refuses a large body unread has answered."""

    def refuses(body: bytes) -> bool:
        raise AssertionError(f"no fox here: {body!r}")

    handle, running = running_at(server.port)
    with pytest.raises(WrongAnswer, match="no fox here"):
        handle.get("/ok", expect=refuses).ask(running)
    with pytest.raises(Refused, match="status 413"):
        handle.post("/too-large", body=8 * BIG).ask(running, timeout=1.5)
    handle, running = running_at(free_port())
    with pytest.raises(ServerFailed, match="ConnectionRefusedError"):
        handle.get("/").ask(running)


@pytest.mark.parametrize("before", [b"unknown ", b"x" * (TEXT_SHOWN - 5)], ids=["short", "cut"])
def test_secrets_of_a_request_are_not_shown(server: Serving, before: bytes) -> None:
    """A server that repeats a token has it masked in the error, also where that ends within it; the body is whole."""
    handle, running = running_at(server.port)
    said = before + b"abcdefghij"
    with pytest.raises(Refused) as caught:
        handle.post("/echo?status=403", body=said, headers={"Authorization": "Bearer abcdefghij"}).ask(running)
    assert f"{before.decode()}<" in caught.value.found
    assert "abc" not in str(caught.value)
    assert caught.value.body == said


def test_a_server_that_takes_too_long_is_given_up(server: Serving) -> None:
    """The timeout is that of the whole request: a server without room for it, or that always has one more byte."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        handle, running = running_at(listener.getsockname()[1], default_model="m")
        with pytest.raises(ServerFailed, match="no whole answer in 300 ms"):
            infer(handle, BIG_ITEMS).ask(running, timeout=PATIENCE_SECONDS)
    handle, running = running_at(server.port)
    with pytest.raises(ServerFailed, match=r"ask\(timeout=0\.6\)") as caught:
        handle.get("/drip?pause=0.02").ask(running, timeout=PATIENCE_SECONDS)
    assert caught.value.found == "no whole answer in 300 ms"


# -- other transports


def test_grpc_is_asked_like_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is a message, or a refusal with code and text, without a status; a late or absent server fails."""
    pytest.importorskip("tritonclient.grpc")
    from tests.fakes.grpc_server import serving_grpc

    def target(method: str, port: int) -> tuple[Any, Instance]:
        monkeypatch.setattr("pytest_gpuserve.experiment.handle.RPC", f"/fake.Fake/{method}")
        handle, running = running_at(free_port(), grpc_port=port, default_model="m")
        return infer(handle, grpc=True), running

    with serving_grpc() as server:
        echo, running = target("Echo", server.port)
        assert echo.ask(running).body == echo.messages[0]
        failing, running = target("Fail", server.port)
        with pytest.raises(Refused, match="NOT_FOUND: no model «größer»") as caught:
            failing.ask(running)
        assert caught.value.status is None
        assert "größer" in caught.value.body.decode()
        slow, running = target("Slow", server.port)
        with pytest.raises(ServerFailed, match=r"ask\(timeout=0\.4\)"):
            slow.ask(running, timeout=0.2)
    gone, running = target("Echo", free_port())
    with pytest.raises(ServerFailed, match="does not answer"):
        gone.ask(running)


# -- a start of its own, and what cannot be asked


def test_without_a_running_server_one_is_started_and_ended(server: Serving) -> None:
    """The request is sent when the server is ready, and the server ends afterwards, even after a refusal."""
    course = []

    @contextmanager
    def start(kind: ServerKind, ask: Ask, beside: object = None) -> Iterator[Instance]:
        assert beside is None
        course.append(f"started for {ask.path}")
        assert isinstance(kind, RemoteServer)
        try:
            yield Instance(kind, kind.site(), None, None)
        finally:
            course.append("ended")

    handle = replace(running_at(server.port)[0], starter=start)
    assert handle.get("/ok").ask().body == BODY
    with pytest.raises(Refused):
        handle.get("/unavailable").ask()
    assert course == ["started for /ok", "ended", "started for /unavailable", "ended"]


def test_what_is_not_one_request_to_this_server_is_refused() -> None:
    """Several, one through shared memory, or one whose answer would be another server's: none is started to say so."""
    handle, running = running_at(1, default_model="m")
    for target, said in (
        (handle.rotate([handle.get("/a"), handle.get("/b")]), r"one request, not 2(.*\n)*.*on each of those"),
        (infer(handle, shared_memory={"Y": 8}), "not through shared memory"),
    ):
        for there in (running, None):
            with pytest.raises(UsageProblem, match=said):
                target.ask(there)
    for requests, said in (
        ([], "takes one request at least"),
        ([handle.get("/"), handle.post("/", stream=True)], "cannot be mixed in one load"),
    ):
        with pytest.raises(UsageProblem, match=said):
            handle.rotate(requests)
    with pytest.raises(UsageProblem, match="is sent to another"):
        handle.get("/").ask(running_at(2)[1])
