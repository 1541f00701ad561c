"""The command does what its options say, tells what is wrong with them beforehand, and never makes a good thing of it.

How a busy machine disturbs a measurement is nothing that a test can prevent: reasons of that kind are let pass, unless
the test is about them.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import random
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load import command
from pytest_gpuserve.load.command import main, make_parser
from pytest_gpuserve.load.schedule import Burst, Closed, Constant, Gamma, Poisson, Schedule, Steps
from pytest_gpuserve.load.totals import RunningTotals
from pytest_gpuserve.load.wire import Plan, Tick, Tls
from pytest_gpuserve.process.ports import free_port
from tests.fakes.certificates import make_certificates
from tests.fakes.children.toolkit import ROOT, alive, eventually
from tests.fakes.http_server import Serving, serving
from tests.fakes.threads import in_a_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import TextIOWrapper
    from pathlib import Path

SAFETY_SECONDS = 60.0

NOISE = ("client late", "client held up", "in flight", "client saturated", "rate not reached")
"""Reasons that a busy machine alone can give."""

SECRET = "hf_abcdefghijkl"

HTTP = "http://127.0.0.1:1/"
GRPC = "grpc://127.0.0.1:1/service/method"
WORKER = "worker:///run/queue.sock"
OPTIONS = [name for action in make_parser()._actions for name in action.option_strings if action.dest != "help"]

TOKENS = 6
GAP_SECONDS = 0.05
FIRST_SECONDS = 0.15


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measure what the client reaches on this host once for all tests, and remember it in no real home."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def surroundings(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the same of every machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("GPUSERVE_HOST", raising=False)


@pytest.fixture
def server() -> Iterator[Serving]:
    """Give a server of its own to each test, so that all that it saw is of this test."""
    with serving() as running:
        yield running


class Heard(NamedTuple):
    """A request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Recorder:
    """A server that remembers every request."""

    url: str
    heard: list[Heard] = field(default_factory=list)

    @property
    def bodies(self) -> list[bytes]:
        """Of all requests, in order."""
        return [heard.body for heard in self.heard]


class Handler(BaseHTTPRequestHandler):
    """Answers by the path.

    ``/echo`` with the request's body, ``/swap`` with another's, ``/tenth`` with every tenth an error, ``/denied`` with
    an error that repeats the request's body, ``/stream`` with tokens at known times, and all others with ``right``.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    recorder: Recorder

    def _take(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        heard = self.recorder.heard
        heard.append(Heard(self.command, self.path, dict(self.headers.items()), body))
        failed = self.path == "/denied" or (self.path == "/tenth" and len(heard) % 10 == 0)
        swapped = {b"one": b"two", b"two": b"one"}.get(body, body)
        answer = {"/echo": body, "/denied": body, "/swap": swapped, "/stream": b""}.get(self.path, b"right")
        self.send_response(500 if failed else 200)
        if self.path == "/stream":
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.path == "/stream":
            for number in range(TOKENS):
                time.sleep(GAP_SECONDS if number else FIRST_SECONDS)
                self._chunk(b'data: {"token": %d}\n\n' % number)
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
        elif self.command != "HEAD":
            self.wfile.write(answer)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    do_GET = do_POST = do_PUT = do_HEAD = _take  # noqa: N815 -- the standard library's names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 -- the standard library's signature
        """Say nothing."""


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """Run one for the test."""
    with in_a_thread(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as listening:
        running = Recorder(f"http://127.0.0.1:{listening.server_address[1]}")
        listening.RequestHandlerClass = type("Recording", (Handler,), {"recorder": running})
        yield running


# -- running the command


@dataclass(frozen=True)
class Said:
    """What the command said in JSON."""

    status: int
    values: dict[str, Any]

    @property
    def reasons(self) -> list[str]:
        """Why it is invalid, but for what a busy machine does."""
        return [reason for reason in self.values["reasons"] if not reason.startswith(NOISE)]


class Command:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def json(self, *argv: object) -> Said:
        """Run a load; the exit status always says whether it is valid."""
        status, out, err = self.text(*argv, "--json")
        values = json.loads(out)
        assert (status, err) == (0 if values["valid"] else 1, "")
        assert values["valid"] == (not values["reasons"])
        return Said(status, values)

    def text(self, *argv: object) -> tuple[int, str, str]:
        """Return exit status, standard output and standard error."""
        status = main([str(argument) for argument in argv])
        captured = self._capsys.readouterr()
        return status, captured.out, captured.err

    def refused(self, *argv: object) -> str:
        """Return what is said of a wrong argument: one paragraph, and nothing on standard output."""
        status, out, err = self.text(*argv)
        assert (status, out) == (2, "")
        assert "Traceback" not in err
        assert "\n\n" not in err
        assert 1 <= err.count("\n") <= 6
        return err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command in this process."""
    return Command(capsys)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Let every load fail before it begins; gives the plans of those that were attempted."""
    attempted: list[Plan] = []

    def fail(plan: Plan, **_: object) -> NoReturn:
        attempted.append(plan)
        raise LoadFailed("no load in this test")

    monkeypatch.setattr(command, "run_load", fail)
    return attempted


def environment(**more: str) -> dict[str, str]:
    """Return what a child of the test gets: this process's, with the package to be found."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **more}


# -- what is told


def test_a_load_is_summarised_like_hey(server: Serving) -> None:
    """As a program: the parts of the summary in order, exit status 0 of a valid one, nothing on standard error."""
    url = f"http://127.0.0.1:{server.port}/ok?ms=100"
    argv = [sys.executable, "-m", "pytest_gpuserve.load", url, "--requests", "40", "--concurrency", "10"]
    # A busy machine may spoil a load, but not every one.
    for _ in range(10):
        done = subprocess.run(
            argv, capture_output=True, text=True, env=environment(), timeout=SAFETY_SECONDS, check=False, cwd="/"
        )
        assert done.stderr == ""
        assert done.returncode == (0 if done.stdout.endswith("\n\nVALID\n") else 1)
        if done.returncode == 0:
            break
    assert done.returncode == 0
    assert done.stdout.startswith("Summary:")
    parts = ["Requests/sec:", "Response time histogram:", "■", "Latency distribution:", "  [good]  40", "Client:"]
    places = [done.stdout.index(part) for part in parts]
    assert places == sorted(places)


def test_json_has_what_a_script_needs(server: Serving, run: Command) -> None:
    """The agreed fields, with the numbers of this load."""
    said = run.json(f"http://127.0.0.1:{server.port}/ok?ms=20", "--requests", 120, "--concurrency", 6)
    values = said.values
    assert said.reasons == []
    assert (values["requests"], values["errors"], values["error_kinds"]) == (120, 0, {})
    assert values["seconds"] >= 20 * 0.02
    assert values["throughput"] == pytest.approx(120 / values["seconds"])
    latency = values["latency"]
    assert 0.02 <= latency["p50"] <= latency["p90"] <= latency["p95"] <= latency["p99"] <= latency["max"]
    assert latency["mean"] * 120 >= 120 * 0.02
    assert values["cpu_seconds"] > 0
    assert "send_lag_p99" in values
    assert values["schedule"] == {"load": "closed loop", "concurrency": "6"}
    assert server.seen("/ok").requests == 120
    assert server.seen("/ok").connections == 6


def test_what_standard_output_cannot_take_is_no_traceback(server: Serving) -> None:
    """ASCII alone gets question marks for bars; a reader that leaves early, as of ``| head -1``, gets status 1."""
    url = f"http://127.0.0.1:{server.port}/ok"
    argv = [sys.executable, "-m", "pytest_gpuserve.load", url, "--requests", "20", "--concurrency", "2"]
    ascii_alone = environment(PYTHONIOENCODING="ascii")
    done = subprocess.run(argv, capture_output=True, env=ascii_alone, timeout=SAFETY_SECONDS, check=False)
    assert (done.returncode in {0, 1}, done.stderr) == (True, b"")
    assert b"|???" in done.stdout
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as output:
        gone = subprocess.run(
            argv, stdout=output, stderr=subprocess.PIPE, env=environment(), timeout=SAFETY_SECONDS, check=False
        )
    assert (gone.returncode, gone.stderr) == (1, b"")


# -- when requests are sent


@pytest.mark.parametrize(
    ("argv", "schedule", "seconds"),
    [
        ([], Closed(16), 10),
        (["--requests", 5], Closed(16), None),
        (["--requests", 5, "--duration", 3], Closed(16), 3),
        (["--concurrency", 2, "--think", 0.2], Closed(2, 0.2), 10),
        (["--steps", "1:0.5,3:60", "--think", 1], Steps(((1, 0.5), (3, 60.0)), 1.0), None),
        (["--rate", 5], Constant(5.0), 10),
        (["--rate", 5, "--arrivals", "constant", "--max-in-flight", 2], Constant(5.0, 2), 10),
        (["--rate", 5, "--arrivals", "poisson", "--requests", 9], Poisson(5.0), None),
        (["--rate", 5, "--arrivals", "gamma"], Gamma(5.0, 1.0), 10),
        (["--rate", 5, "--arrivals", "gamma", "--shape", 0.5], Gamma(5.0, 0.5), 10),
        (["--burst", 5], Burst(5), None),
        (["--burst", 5, "--max-in-flight", 2], Burst(5, 2), None),
    ],
)
def test_the_load_is_what_was_asked_for(
    plans: list[Plan], run: Command, argv: list[object], schedule: Schedule, seconds: int | None
) -> None:
    """Without an end it takes ten seconds, but what ends by itself, or after so many requests, is not cut short."""
    assert run.text(HTTP, *argv)[0] == 1
    (plan,) = plans
    assert (plan.schedule, plan.nanoseconds) == (schedule, None if seconds is None else seconds * 10**9)


def test_a_rate_is_kept(server: Serving, run: Command) -> None:
    """All that is due is sent, in the time that it takes, where users who do not wait would need a tenth of it."""
    said = run.json(f"http://127.0.0.1:{server.port}/ok", "--rate", 100, "--requests", 40)
    assert (said.reasons, said.values["requests"], server.seen("/ok").requests) == ([], 40, 40)
    assert said.values["schedule"] == {"load": "open loop, constant", "rate": "100"}
    assert said.values["service"]["max"] <= said.values["latency"]["max"]
    assert said.values["seconds"] >= 0.3


@pytest.mark.parametrize("argv", [["--duration", 1], ["--steps", "1:0.4,16:0.6"]])
def test_users_come_and_the_time_ends_the_load(server: Serving, run: Command, argv: list[object]) -> None:
    """With a pause of 0.2 s each of 16 sends five requests a second at most, and one before."""
    said = run.json(f"http://127.0.0.1:{server.port}/ok", "--think", 0.2, *argv)
    assert (said.reasons, server.seen("/ok").connections) == ([], 16)
    assert 16 <= said.values["requests"] <= 6 * 16
    assert said.values["seconds"] >= 0.8
    assert said.values["schedule"]["think_seconds"] == "0.2"


def test_a_burst_is_due_at_once(server: Serving, run: Command) -> None:
    """All of it is under way together, or as much as the ceiling allows: then the wait counts as latency."""
    narrow = run.json(f"http://127.0.0.1:{server.port}/ok?ms=50", "--burst", 10, "--max-in-flight", 2)
    assert (narrow.reasons, narrow.values["requests"], server.seen("/ok").most_at_once) == ([], 10, 2)
    assert narrow.values["latency"]["max"] >= 5 * 0.05
    assert narrow.values["schedule"]["max_in_flight"] == "2"
    wide = run.json(f"http://127.0.0.1:{server.port}/ok?ms=1000", "--burst", 12)
    assert (wide.reasons, wide.values["requests"], server.seen("/ok").most_at_once) == ([], 12, 12)
    assert wide.values["schedule"] == {"load": "burst", "requests": "12"}


def test_processes_share_the_load_and_its_warm_up_is_not_counted(server: Serving, run: Command) -> None:
    """The server sees as many requests and connections as one process makes; the summary leaves the warm-up out."""
    url = f"http://127.0.0.1:{server.port}/ok?ms=5"
    said = run.json(url, "--requests", 101, "--concurrency", 5, "--processes", 2)
    assert (said.reasons, said.values["requests"], said.values["processes"]) == ([], 101, 2)
    before = server.seen("/ok")
    assert (before.requests, before.connections) == (101, 5)
    warmed = run.json(url, "--concurrency", 2, "--warmup", 0.5, "--duration", 1)
    assert warmed.reasons == []
    assert 0 < warmed.values["requests"] < server.seen("/ok").requests - before.requests


def test_a_trace_is_replayed(recorder: Recorder, run: Command, tmp_path: Path) -> None:
    """Each line's body at its time, in turn where no body is named; empty lines are none."""
    trace = tmp_path / "trace"
    trace.write_text("0 1\n\n0.15 0\r\n0.3\n  0.45  1  \n")
    said = run.json(f"{recorder.url}/echo", "--trace", trace, "--body", "zero", "--body", "one")
    assert (said.reasons, said.values["requests"]) == ([], 4)
    assert recorder.bodies == [b"one", b"zero", b"zero", b"one"]
    assert said.values["seconds"] >= 0.35


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (b"0\nabc\n", "line 2 of {file}"),
        (b"0\n\n1 x\n", "line 3 of {file}"),
        (b"0 1\n", "line 1 of {file}"),
        (b"-1\n", "line 1 of {file}"),
        (b"0\nnan\n", "line 2 of {file}"),
        (b"0\n2\n1\n", "line 3 of {file}"),
        (b"0\n1\x0c\n\x00\n", "line 3 of {file}"),
        (b"\xff\xfe\x00" * 50, "line 1 of {file}"),
        (b"\n \n", "{file} holds no request"),
    ],
)
def test_a_damaged_line_of_a_trace_is_named_by_its_number(
    run: Command, tmp_path: Path, lines: bytes, told: str
) -> None:
    """As an editor counts them; a trace without any is no load."""
    trace = tmp_path / "trace"
    trace.write_bytes(lines)
    assert f"--trace: {told.format(file=trace)}" in run.refused(HTTP, "--trace", trace)


# -- what is sent


def test_what_is_sent_is_what_was_asked_for(recorder: Recorder, run: Command) -> None:
    """GET, POST with a body, any other method; headers as given beside the host; HEAD waits for no body."""
    one = ["--requests", 1, "--concurrency", 1]
    run.json(f"{recorder.url}/echo?x=1", *one)
    run.json(f"{recorder.url}/echo", *one, "--body", "text")
    run.json(f"{recorder.url}/echo", *one, "--method", "PUT", "--body", "text")
    run.json(f"{recorder.url}/", *one, "--header", "Authorization: Bearer a:b", "--header", "X-Empty:")
    said = run.json(f"{recorder.url}/", "--method", "HEAD", "--requests", 10, "--concurrency", 2)
    assert (said.reasons, said.values["requests"]) == ([], 10)
    assert [(heard.method, heard.path, heard.body) for heard in recorder.heard] == [
        ("GET", "/echo?x=1", b""),
        ("POST", "/echo", b"text"),
        ("PUT", "/echo", b"text"),
        ("GET", "/", b""),
        *[("HEAD", "/", b"")] * 10,
    ]
    host = {"Host": recorder.url.removeprefix("http://")}
    assert recorder.heard[3].headers == {**host, "Authorization": "Bearer a:b", "X-Empty": ""}


def test_bodies_rotate_in_turn_or_in_an_order_of_the_seed(recorder: Recorder, run: Command, tmp_path: Path) -> None:
    """Those of the command line first, then the files, byte for byte; each as often as the others."""
    file = tmp_path / "body"
    file.write_bytes(b"\x00\xff\r\n")
    argv = [f"{recorder.url}/", "--body", "a", "--body-file", file, "--body", os.fsdecode(b"\xe9"), "--concurrency", 1]
    bodies = [b"a", b"\xe9", b"\x00\xff\r\n"]
    run.json(*argv, "--requests", 7)
    assert recorder.bodies == [*bodies * 2, b"a"]
    for seed in (3, 3, 4):
        recorder.heard.clear()
        run.json(*argv, "--shuffle", "--seed", seed, "--requests", 6)
        random.Random(seed).shuffle(expected := list(bodies))
        assert recorder.bodies == expected * 2


def test_streams_are_timed_by_their_tokens(recorder: Recorder, run: Command) -> None:
    """First token and gaps are those of the server and little more; the end mark is no token."""
    said = run.json(f"{recorder.url}/stream", "--stream", "--requests", 12, "--concurrency", 2)
    values = said.values
    assert (said.reasons, values["requests"]) == ([], 12)
    assert FIRST_SECONDS <= values["first_token"]["mean"] <= 3 * FIRST_SECONDS
    assert 0.5 * GAP_SECONDS <= values["between_tokens"]["p50"] <= 3 * GAP_SECONDS
    assert values["tokens_per_second"] == pytest.approx(12 * TOKENS / values["seconds"])
    assert values["latency"]["mean"] >= FIRST_SECONDS + (TOKENS - 1) * GAP_SECONDS
    _, out, _ = run.text(f"{recorder.url}/stream", "--stream", "--requests", 2, "--concurrency", 2)
    assert f"Tokens:          {2 * TOKENS}, " in out


# -- what comes back


@pytest.fixture
def right(tmp_path: Path) -> Path:
    """The answer that most servers of this file give."""
    file = tmp_path / "right"
    file.write_text("right")
    return file


def test_a_wrong_answer_fails_and_names_its_request(server: Serving, run: Command, right: Path) -> None:
    """Exit status 1, in JSON and in text."""
    argv = [f"http://127.0.0.1:{server.port}/wrong?every=5", "--requests", 10, "--concurrency", 1]
    said = run.json(*argv, "--expect-file", right)
    reason = "wrong answers: 2 of 10 checked; the first: request 0 (payload 0): expected b'right', got b'wrong'"
    assert (said.status, said.reasons) == (1, [reason])
    status, out, _ = run.text(*argv, "--expect-file", right)
    assert status == 1
    assert "\nINVALID:\n" in out
    assert "request 0 (payload 0): expected b'right', got b'wrong'" in out
    assert run.json(*argv).reasons == []


def test_right_and_mixed_up_answers_are_told_apart(recorder: Recorder, run: Command, right: Path) -> None:
    """One expectation for all or one for each body; what is right for another request is told as what it is."""
    one, two = right.with_name("one"), right.with_name("two")
    one.write_text("one")
    two.write_text("two")
    bodies = ["--body-file", one, "--body-file", two, "--requests", 6, "--concurrency", 1]
    each = ["--expect-file", one, "--expect-file", two]
    assert run.json(f"{recorder.url}/echo", *bodies, *each).reasons == []
    assert run.json(f"{recorder.url}/", *bodies, "--expect-file", right).reasons == []
    (reason,) = run.json(f"{recorder.url}/swap", *bodies, *each).reasons
    assert reason.startswith("wrong answers: 6 of 6 checked, 6 of them right for another request; the first: request 0")
    assert reason.endswith("the answer to payload 1, not to payload 0: answers are mixed up")


def test_errors_may_be_allowed(recorder: Recorder, run: Command) -> None:
    """Up to the share that is given, and none without it."""
    argv = [f"{recorder.url}/tenth", "--requests", 40, "--concurrency", 1]
    strict = run.json(*argv)
    assert (strict.status, strict.values["errors"], strict.values["error_kinds"]) == (1, 4, {"status 500": 4})
    assert strict.reasons[0].startswith("request errors: 4 of 40")
    recorder.heard.clear()
    assert run.json(*argv, "--allowed-errors", 0.1).reasons == []
    recorder.heard.clear()
    assert run.json(*argv, "--allowed-errors", 0.09).reasons != []


def test_a_server_that_does_not_answer(server: Serving, run: Command) -> None:
    """Refused, or silent for as long as ``--timeout`` says, is an error of each request; an unknown host is named."""
    url = f"http://127.0.0.1:{free_port()}/"
    said = run.json(url, "--requests", 8, "--concurrency", 4)
    assert (said.status, said.values["requests"], said.values["error_kinds"]) == (1, 0, {"connection refused": 8})
    status, out, _ = run.text(url, "--requests", 8, "--concurrency", 4)
    assert status == 1
    assert "[connection refused]  8" in out
    said = run.json(f"http://127.0.0.1:{server.port}/never", "--timeout", 0.2, "--requests", 3, "--concurrency", 3)
    assert (said.status, said.values["requests"], said.values["error_kinds"]) == (1, 0, {"timeout": 3})
    assert "no answer within 0.2 s" in said.reasons[0]
    status, out, err = run.text("http://no-such-host.invalid/", "--requests", 1, "--concurrency", 1)
    assert (status, out) == (1, "")
    assert "no-such-host.invalid" in err
    assert "Traceback" not in err


# -- secrets


@pytest.mark.parametrize("told_by", ["environment", "header"])
@pytest.mark.parametrize("before", [0, 60, 70, 80, 270, 280, 290, 300])
def test_an_answer_that_repeats_a_secret_is_shown_without_it(
    monkeypatch: pytest.MonkeyPatch, recorder: Recorder, run: Command, right: Path, *, told_by: str, before: int
) -> None:
    """Of this process or of the request, in an error or a wrong answer, also where what is shown ends within it."""
    if told_by == "environment":
        monkeypatch.setenv("HF_TOKEN", SECRET)
    headers = ["--header", f"Authorization: Bearer {SECRET}"] if told_by == "header" else []
    argv = ["--body", f"{'no ' * (before // 3)}{SECRET}{' no' * 100}", "--requests", 2, "--concurrency", 1, *headers]
    denied = run.json(f"{recorder.url}/denied", *argv)
    assert denied.values["error_kinds"] == {"status 500": 2}
    assert "status 500" in denied.reasons[0]
    wrong = run.json(f"{recorder.url}/echo", *argv, "--expect-file", right)
    assert wrong.reasons[0].startswith("wrong answers: 2 of 2 checked")
    status, out, _ = run.text(f"{recorder.url}/denied", *argv)
    assert status == 1
    assert "[status 500]  2, the first: request 0: b'" in out
    assert SECRET[:5] not in f"{denied.values}{wrong.values}{out}"


def test_an_error_is_told_without_secrets(monkeypatch: pytest.MonkeyPatch, run: Command) -> None:
    """Of a wrong argument, and of a load that cannot be."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert "--body-file /no/<HF_TOKEN>/file" in run.refused(HTTP, "--body-file", f"/no/{SECRET}/file")

    def fail(*_: object, **__: object) -> NoReturn:
        raise LoadFailed("no load", found=f"it said {SECRET}")

    monkeypatch.setattr(command, "run_load", fail)
    assert run.text(HTTP) == (1, "", "no load\n  found: it said <HF_TOKEN>\n")


# -- TLS


def test_a_certificate_is_checked_unless_told_otherwise(plans: list[Plan], run: Command, tmp_path: Path) -> None:
    """By what this host trusts, or by a file of one's own."""
    own = make_certificates(tmp_path).ca_file
    for more in ([], ["--insecure"], ["--ca-file", own]):
        assert run.text("https://h/", *more)[0] == 1
    assert [plan.endpoint.tls for plan in plans] == [Tls("h"), Tls("h", verify=False), Tls("h", ca_file=own)]


@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_a_file_without_certificates_is_told_beforehand(run: Command, tmp_path: Path, content: str | None) -> None:
    """Missing, empty or something else."""
    file = tmp_path / "ca"
    if content is not None:
        file.write_text(content)
    assert f"--ca-file {file}" in run.refused("https://127.0.0.1:1/", "--ca-file", file)


# -- wrong arguments


WRONG = {
    ("--concurrency", "--burst", "--requests", "--processes", "--seed"): ("x", "", "1.5", "-1", "1e3", "nan", "9" * 30),
    ("--concurrency", "--burst", "--requests", "--processes"): ("0",),
    ("--rate", "--duration", "--timeout"): ("x", "", "0", "-1", "nan", "inf", "-inf", "1e300", "1e-300"),
    ("--think", "--warmup"): ("x", "", "-1", "nan", "inf", "1e300", None),
    ("--shape", "--max-in-flight"): ("x", "0", "-1", "nan", "inf"),
    ("--allowed-errors",): ("x", "-0.1", "1", "nan", "inf"),
    ("--steps",): ("", "5", "x:1", "1:x", "0:1", "1:0", "-1:1", "1:-1", "1:nan", "1:inf", "1.5:1", "1:1,"),
    ("--header",): ("", "x", ": x", "a b: c", "Host: x", "X: \u00e9", "X: a\r\nY: b"),
    ("--method",): ("", "A B", "\u00e9", "GET\r\n"),
    ("--arrivals",): ("uniform",),
    ("--no-such-option",): (None,),
    ("--conc",): ("5",),
}
"""Options, and values that none of them can have; None is no value at all."""

IN_PLACE = {"--shape": ["--rate", "5", "--arrivals", "gamma"], "--max-in-flight": ["--rate", "5"]}
"""Without which an option is refused whatever its value is."""


@pytest.mark.parametrize(
    ("option", "value"),
    [(option, value) for options, values in WRONG.items() for option in options for value in values],
)
def test_a_wrong_value_is_told_with_its_option(plans: list[Plan], run: Command, option: str, value: str | None) -> None:
    """One paragraph, exit status 2, and nothing is started."""
    text = run.refused(HTTP, *IN_PLACE.get(option, []), option, *([] if value is None else [value]))
    assert option in text.splitlines()[0]
    assert plans == []


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ([HTTP, "--rate", "5", "--concurrency", "5"], ["--rate", "--concurrency"]),
        ([HTTP, "--burst", "5", "--steps", "1:1"], ["--burst", "--steps"]),
        ([HTTP, "--trace", "x", "--rate", "5"], ["--trace", "--rate"]),
        ([HTTP, "--rate", "5", "--think", "1"], ["--think", "--concurrency", "--steps"]),
        ([HTTP, "--arrivals", "poisson"], ["--arrivals", "--rate"]),
        ([HTTP, "--rate", "5", "--arrivals", "poisson", "--shape", "2"], ["--shape", "--arrivals gamma"]),
        ([HTTP, "--max-in-flight", "2"], ["--max-in-flight", "--rate"]),
        ([HTTP, "--shuffle", "--body", "a"], ["--shuffle", "several bodies"]),
        ([HTTP, "--shuffle", "--body", "a", "--body", "b", "--trace", "x"], ["--shuffle", "--trace"]),
        ([HTTP, "--stream", "--method", "HEAD"], ["--stream", "--method HEAD"]),
        ([HTTP, "--insecure"], ["--insecure", "https://"]),
        ([HTTP, "--ca-file", "x"], ["--ca-file", "https://"]),
        (["https://h/", "--ca-file", "x", "--insecure"], ["--ca-file", "--insecure"]),
        ([GRPC, "--stream"], ["--stream", "http://"]),
        ([GRPC, "--method", "GET"], ["--method", "http://"]),
        ([GRPC, "--insecure"], ["--insecure", "grpcs://"]),
        ([WORKER, "--header", "a: b"], ["--header", "grpc(s)://"]),
        ([HTTP, "--header", "a: b", "--header", "A: c"], ["--header", "twice"]),
        ([HTTP, "--warmup", "10"], ["--warmup", "--duration"]),
        ([HTTP, "--warmup", "2", "--steps", "1:1,2:1"], ["--warmup", "--duration"]),
        ([HTTP, "--warmup", "2", "--steps", "1:9", "--duration", "1"], ["--warmup", "--duration"]),
        ([HTTP, "--expect-file", os.devnull, "--expect-file", os.devnull], ["--expect-file"]),
        ([HTTP, "--expect-file", "/no/such/file"], ["--expect-file", "/no/such/file"]),
        ([HTTP, "--body-file", "/no/such/file"], ["--body-file", "/no/such/file"]),
        ([HTTP, "--body-file", "/"], ["--body-file"]),
        ([HTTP, "--trace", "/no/such/file"], ["--trace", "/no/such/file"]),
        ([], ["url"]),
        ([HTTP, HTTP], [HTTP]),
        (["127.0.0.1:1/"], ["127.0.0.1:1/", "http://HOST:PORT/PATH"]),
        (["http://h/\u00e9"], ["http://h/\u00e9"]),
        (["grpc://h/"], ["grpc://h/", "/SERVICE/METHOD"]),
    ],
)
def test_what_does_not_fit_together_is_told_beforehand(
    plans: list[Plan], run: Command, argv: list[str], named: list[str]
) -> None:
    """Nothing that was asked for is passed over in silence, and nothing is started."""
    text = run.refused(*argv)
    assert [name for name in named if name not in text] == []
    assert plans == []


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    argv=st.lists(
        st.one_of(
            st.sampled_from(OPTIONS),
            st.sampled_from(["0", "1", "2.5", "-1", "nan", "1:1", "a: b", "gamma", "poisson", "HEAD", GRPC, WORKER]),
            # Whatever bytes a shell may pass on.
            st.binary(max_size=6).map(lambda data: os.fsdecode(data.replace(b"\0", b""))),
        ),
        max_size=6,
    )
)
def test_no_arguments_end_in_a_traceback(argv: list[str], plans: list[Plan], run: Command) -> None:
    """Whatever is typed is refused, or a load, or asks for help, of which ``-h`` is one."""
    plans.clear()
    # As the real one: it can write whatever it is given.
    cast("TextIOWrapper", sys.stderr).reconfigure(errors="backslashreplace")
    with suppress(SystemExit):  # of a question for help
        status, out, err = run.text("http://127.0.0.1:1/", *argv)
        assert (status, out) == (1 if plans else 2, "")
        assert err


def test_what_this_host_cannot_do_is_told_beforehand(run: Command) -> None:
    """More processes than users, and more users than open files."""
    text = run.refused(HTTP, "--processes", 3, "--concurrency", 2)
    assert "--processes: 3 processes cannot share 2 connections" in text
    assert "--processes 2 at most" in text
    text = run.refused(HTTP, "--concurrency", 10**9)
    assert "1000000000 connections" in text
    assert "ulimit" in text


def test_a_wrong_name_of_the_host_is_told_before_the_load(
    monkeypatch: pytest.MonkeyPatch, plans: list[Plan], run: Command
) -> None:
    """It is needed only afterwards, when it would cost the measurement."""
    monkeypatch.setenv("GPUSERVE_HOST", "not / a name")
    assert "GPUSERVE_HOST" in run.refused(HTTP)
    assert plans == []


# -- Ctrl-C


@pytest.mark.parametrize("in_json", [True, False])
@pytest.mark.parametrize(
    ("ended_by", "status", "reason"),
    [
        ("Ctrl-C", 130, "interrupted by Ctrl-C: not decided"),
        ("a lost engine", 1, "lost in mid-load: the load engine died: exit status -9"),
    ],
)
def test_a_load_that_is_cut_short_tells_what_was_measured(
    server: Serving, ended_by: str, status: int, reason: str, *, in_json: bool
) -> None:
    """The numbers and the reason are there, and standard error is empty; it is invalid, and no engine is left."""
    url = f"http://127.0.0.1:{server.port}/ok?ms=5"
    argv = [sys.executable, "-m", "pytest_gpuserve.load", url, "--duration", "300", "--processes", "2"]
    with subprocess.Popen(
        [*argv, *(["--json"] if in_json else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    ) as process:
        try:
            # Some of it must have been reported, which is done ten times a second.
            eventually(lambda: server.seen("/ok").requests > 0, "the load begins", SAFETY_SECONDS)
            time.sleep(0.5)
            engines = psutil.Process(process.pid).children()
            if ended_by == "Ctrl-C":
                os.killpg(process.pid, signal.SIGINT)
            else:
                engines[0].kill()
            out, err = process.communicate(timeout=SAFETY_SECONDS)
        finally:
            process.kill()
    assert (process.returncode, err, len(engines)) == (status, "", 2)
    assert not any(alive(engine.pid) for engine in engines)
    if in_json:
        values = json.loads(out)
        assert (values["valid"], values["reasons"][0]) == (False, reason)
        assert values["requests"] > 0
        assert values["latency"]["p50"] >= 0.005
    else:
        assert "Latency distribution:" in out
        assert f"\nINVALID:\n  {reason}\n" in out


# -- the progress line


class Screen:
    """A terminal for standard error; what was written to it is read at the end."""

    def __init__(self, columns: int) -> None:
        self._master, slave = pty.openpty()
        self.stream = os.fdopen(slave, "w")
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def close(self) -> str:
        """Return all that was written."""
        data = b""
        os.set_blocking(self._master, False)
        try:
            while piece := os.read(self._master, 1 << 16):
                data += piece
        except OSError:
            pass
        self.stream.close()
        os.close(self._master)
        return data.decode()


LINE = re.compile(r"\r([^\r\x1b]*)\x1b\[K")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show progress after 0.2 s already."""
    monkeypatch.setattr(command, "QUIET_SECONDS", 0.2)


def shown_on(screen: Screen, monkeypatch: pytest.MonkeyPatch, *argv: object) -> str:
    """Run the command with standard error on this screen; returns what was written there."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", screen.stream)
        try:
            main([str(argument) for argument in argv])
        finally:
            shown = screen.close()
    return shown


def test_progress_is_shown_on_a_terminal_and_removed(
    server: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], at_once: None
) -> None:
    """Rate, p99 and time left, on one line that is empty at the end; standard output holds nothing of it."""
    url = f"http://127.0.0.1:{server.port}/ok?ms=5"
    shown = shown_on(Screen(60), monkeypatch, url, "--duration", 1.2)
    lines = LINE.findall(shown)
    assert "".join(f"\r{line}\x1b[K" for line in lines) == shown
    assert len(lines) >= 3
    assert lines[-1] == ""
    assert all(re.fullmatch(r"[\d.e+-]+/s  p99 \S+( \S+)?  [01] s left|-/s  p99 -.*", line) for line in lines[:-1]), (
        lines
    )
    assert all(len(line) < 60 for line in lines)
    out = capsys.readouterr().out
    assert out.startswith("Summary:")
    assert not {"\r", "\x1b"} & set(out)


def test_progress_knows_the_end_of_steps_and_none_of_requests(
    server: Serving, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    """What nobody knows is not shown, nor what is wider than the terminal: a line that wraps could not be removed."""
    url = f"http://127.0.0.1:{server.port}/ok?ms=10"
    assert " s left" in shown_on(Screen(60), monkeypatch, url, "--steps", "1:0.4,2:0.4")
    shown = shown_on(Screen(60), monkeypatch, url, "--requests", 100, "--concurrency", 2)
    assert "/s" in shown
    assert "left" not in shown
    lines = LINE.findall(shown_on(Screen(10), monkeypatch, url, "--duration", 0.6))
    assert 0 < max(map(len, lines)) < 10


def test_progress_is_removed_when_the_load_fails(monkeypatch: pytest.MonkeyPatch, at_once: None) -> None:
    """The error is told on an empty line."""

    def fail(plan: object, *, on_tick: Any, **_: object) -> NoReturn:  # noqa: ANN401 -- a callback
        on_tick(RunningTotals(), Tick(0, 0, 10**9))
        raise LoadFailed("it broke")

    monkeypatch.setattr(command, "run_load", fail)
    shown = shown_on(Screen(60), monkeypatch, HTTP)
    assert shown.endswith("\r\x1b[Kit broke\r\n")
    assert "/s  p99 -" in shown


def test_no_progress_in_ci_in_a_pipe_or_of_a_short_load(
    server: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not a byte is written to standard error."""
    url = f"http://127.0.0.1:{server.port}/ok?ms=5"
    assert shown_on(Screen(60), monkeypatch, url, "--duration", 0.6) == ""
    monkeypatch.setattr(command, "QUIET_SECONDS", 0.2)
    main([url, "--duration", "0.6"])
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("CI", "true")
    assert shown_on(Screen(60), monkeypatch, url, "--duration", 0.6) == ""
