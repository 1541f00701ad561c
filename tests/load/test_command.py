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
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytest_gpuserve
from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load import command, command_progress
from pytest_gpuserve.load.command import main
from pytest_gpuserve.process.ports import free_port
from tests.fakes.children.toolkit import alive, eventually
from tests.fakes.http_server import Serving, serving
from tests.fakes.threads import in_a_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import TextIOWrapper

SAFETY_SECONDS = 60.0

NOISE = ("client late", "client held up", "in flight", "client saturated", "rate not reached")
"""Reasons that a busy machine alone can give."""

SECRET = "hf_abcdefghijkl"

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


# -- a server that remembers every request


@dataclass(frozen=True)
class Heard:
    """A request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Recorder:
    """What came, in order."""

    port: int
    heard: list[Heard] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def bodies(self) -> list[bytes]:
        """Of all requests."""
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
        if self.path == "/stream":
            self._stream()
            return
        status = 500 if self.path == "/denied" or (self.path == "/tenth" and len(heard) % 10 == 0) else 200
        swapped = {b"one": b"two", b"two": b"one"}.get(body, body)
        answer = {"/echo": body, "/denied": body, "/swap": swapped}.get(self.path, b"right")
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        time.sleep(FIRST_SECONDS)
        for number in range(TOKENS):
            if number:
                time.sleep(GAP_SECONDS)
            self._chunk(b'data: {"token": %d}\n\n' % number)
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    do_GET = do_POST = do_PUT = do_HEAD = _take  # noqa: N815 -- the standard library's names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 -- the standard library's signature
        """Say nothing."""


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """Run one for the test."""
    with in_a_thread(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as listening:
        running = Recorder(listening.server_address[1])
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


def environment(**more: str) -> dict[str, str]:
    """Return what a child of the test gets: this process's, with the package to be found."""
    root = str(Path(pytest_gpuserve.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])), **more}


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
    parts = [
        "Summary:",
        "Requests/sec:",
        "Response time histogram:",
        "Latency distribution:",
        "  [good]  40",
        "Client:",
    ]
    places = [done.stdout.index(part) for part in parts]
    assert places == sorted(places)
    assert done.stdout.count("■") > 0


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


def test_bars_become_question_marks_where_there_are_no_bars(server: Serving) -> None:
    """Standard output that knows ASCII alone is no reason to lose a measurement."""
    url = f"http://127.0.0.1:{server.port}/ok"
    done = subprocess.run(
        [sys.executable, "-m", "pytest_gpuserve.load", url, "--requests", "20", "--concurrency", "2"],
        capture_output=True,
        env=environment(PYTHONIOENCODING="ascii"),
        timeout=SAFETY_SECONDS,
        check=False,
    )
    assert (done.returncode in {0, 1}, done.stderr) == (True, b"")
    assert b"|???" in done.stdout


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """And ends with 0."""
    with pytest.raises(SystemExit) as raised:
        main(["--help"])
    assert raised.value.code == 0
    out = capsys.readouterr().out
    for option in OPTIONS:
        assert f"{option} " in out or f"{option}\n" in out


# -- when requests are sent


@pytest.mark.parametrize(
    ("arrivals", "told"),
    [
        ([], {"load": "open loop, constant", "rate": "200"}),
        (["--arrivals", "constant"], {"load": "open loop, constant", "rate": "200"}),
        (["--arrivals", "poisson"], {"load": "open loop, Poisson", "rate": "200"}),
        (["--arrivals", "gamma"], {"load": "open loop, gamma", "rate": "200", "shape": "1"}),
        (["--arrivals", "gamma", "--shape", "0.5"], {"load": "open loop, gamma", "rate": "200", "shape": "0.5"}),
    ],
)
def test_an_open_loop_of_each_kind(server: Serving, run: Command, arrivals: list[str], told: dict[str, str]) -> None:
    """All requests that are due are sent, and both latencies told."""
    said = run.json(f"http://127.0.0.1:{server.port}/ok", "--rate", 200, "--requests", 60, *arrivals)
    assert (said.reasons, said.values["requests"], said.values["schedule"]) == ([], 60, told)
    assert said.values["service"]["max"] <= said.values["latency"]["max"]
    assert server.seen("/ok").requests == 60


def test_a_rate_is_kept(server: Serving, run: Command) -> None:
    """40 requests at 100 a second take about 0.4 s; users who do not wait would need a tenth of it."""
    said = run.json(f"http://127.0.0.1:{server.port}/ok", "--rate", 100, "--requests", 40)
    assert said.values["seconds"] >= 0.3


def test_a_burst_is_due_at_once(server: Serving, run: Command) -> None:
    """All of it is under way at the same time."""
    said = run.json(f"http://127.0.0.1:{server.port}/ok?ms=1000", "--burst", 12)
    assert (said.reasons, said.values["requests"]) == ([], 12)
    assert said.values["schedule"] == {"load": "burst", "requests": "12"}
    assert server.seen("/ok").most_at_once == 12


def test_a_ceiling_on_requests_under_way(server: Serving, run: Command) -> None:
    """A burst through a narrow door: never more than two in the server, and the wait counts as latency."""
    said = run.json(f"http://127.0.0.1:{server.port}/ok?ms=50", "--burst", 10, "--max-in-flight", 2)
    assert (said.reasons, said.values["requests"], server.seen("/ok").most_at_once) == ([], 10, 2)
    assert said.values["latency"]["max"] >= 5 * 0.05
    assert said.values["schedule"]["max_in_flight"] == "2"


def test_users_in_steps(server: Serving, run: Command) -> None:
    """One for a while, then three, then the end."""
    said = run.json(f"http://127.0.0.1:{server.port}/ok?ms=10", "--steps", "1:0.4,3:0.4")
    assert said.reasons == []
    assert said.values["seconds"] >= 0.6
    assert said.values["schedule"] == {"load": "stepped users", "steps": "1 for 0.4 s, 3 for 0.4 s"}
    assert server.seen("/ok").connections == 3


def test_users_think(server: Serving, run: Command) -> None:
    """Two users with a pause of 0.2 s send at most five requests a second each, and one to begin with."""
    url = f"http://127.0.0.1:{server.port}/ok"
    said = run.json(url, "--concurrency", 2, "--think", 0.2, "--duration", 1)
    assert said.reasons == []
    assert 2 <= said.values["requests"] <= 12
    assert said.values["schedule"]["think_seconds"] == "0.2"


def test_a_trace_is_replayed(recorder: Recorder, run: Command, tmp_path: Path) -> None:
    """Each line's body at its time, in turn where no body is named; empty lines are none."""
    trace = tmp_path / "trace"
    trace.write_text("0 1\n\n0.15 0\r\n0.3\n  0.45  1  \n")
    said = run.json(f"{recorder.url}/echo", "--trace", trace, "--body", "zero", "--body", "one")
    assert (said.reasons, said.values["requests"]) == ([], 4)
    assert recorder.bodies == [b"one", b"zero", b"zero", b"one"]
    assert said.values["seconds"] >= 0.35


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ("0\nabc\n", 2),
        ("0\n\n1 x\n", 3),
        ("0 0 0\n", 1),
        ("0 1\n", 1),
        ("0 -1\n", 1),
        ("-1\n", 1),
        ("0\nnan\n", 2),
        ("inf\n", 1),
        ("0\n2\n1\n", 3),
        ("0\n1\x0c\n\x00\n", 3),
        ("0\n1 0.5\n", 2),
    ],
)
def test_a_damaged_line_of_a_trace_is_named_by_its_number(
    run: Command, tmp_path: Path, lines: str, number: int
) -> None:
    """As an editor counts them."""
    trace = tmp_path / "trace"
    trace.write_text(lines)
    assert f"--trace: line {number} of {trace}" in run.refused("http://127.0.0.1:1/", "--trace", trace)


def test_a_trace_that_is_no_text_or_empty_is_refused(run: Command, tmp_path: Path) -> None:
    """In words."""
    trace = tmp_path / "trace"
    trace.write_bytes(b"\xff\xfe\x00" * 50)
    assert "--trace: line 1 of " in run.refused("http://127.0.0.1:1/", "--trace", trace)
    trace.write_bytes(b"\n \n")
    assert "holds no request" in run.refused("http://127.0.0.1:1/", "--trace", trace)


def test_a_duration_ends_the_load(server: Serving, run: Command) -> None:
    """Sixteen users unless told otherwise, for the time that was given."""
    said = run.json(f"http://127.0.0.1:{server.port}/ok?ms=20", "--duration", 0.5)
    assert said.reasons == []
    assert said.values["seconds"] >= 0.4
    assert said.values["schedule"]["concurrency"] == "16"
    assert server.seen("/ok").connections == 16


def test_without_an_end_it_is_ten_seconds(monkeypatch: pytest.MonkeyPatch, run: Command) -> None:
    """But a load that ends by itself, or after so many requests, is not cut short."""
    plans = unable_to_load(monkeypatch)
    url = "http://127.0.0.1:1/"
    for more, seconds in (
        ([], 10),
        (["--rate", 5], 10),
        (["--requests", 5], None),
        (["--burst", 5], None),
        (["--steps", "1:60"], None),
        (["--requests", 5, "--duration", 3], 3),
    ):
        assert run.text(url, *more)[0] == 1
        assert plans.pop().nanoseconds == (None if seconds is None else seconds * 10**9)


def test_the_warm_up_is_not_counted(server: Serving, run: Command) -> None:
    """The server serves it, the summary leaves it out."""
    url = f"http://127.0.0.1:{server.port}/ok?ms=10"
    said = run.json(url, "--concurrency", 2, "--warmup", 0.5, "--duration", 1)
    assert said.reasons == []
    assert 0 < said.values["requests"] < server.seen("/ok").requests


def test_processes_share_the_load(server: Serving, run: Command) -> None:
    """So many requests on so many connections as one would have made."""
    url = f"http://127.0.0.1:{server.port}/ok?ms=5"
    said = run.json(url, "--requests", 101, "--concurrency", 5, "--processes", 2)
    assert (said.reasons, said.values["requests"], said.values["processes"]) == ([], 101, 2)
    seen = server.seen("/ok")
    assert (seen.requests, seen.connections) == (101, 5)


def test_a_request_that_takes_too_long_is_an_error(server: Serving, run: Command) -> None:
    """``--timeout`` says when."""
    said = run.json(f"http://127.0.0.1:{server.port}/never", "--timeout", 0.2, "--requests", 3, "--concurrency", 3)
    assert (said.status, said.values["error_kinds"], said.values["requests"]) == (1, {"timeout": 3}, 0)
    assert "no answer within 0.2 s" in said.reasons[0]


# -- what is sent


def test_a_get_without_a_body_and_a_post_with_one(recorder: Recorder, run: Command) -> None:
    """And any other method that is asked for."""
    one = ["--requests", 1, "--concurrency", 1]
    run.json(f"{recorder.url}/echo?x=1", *one)
    run.json(f"{recorder.url}/echo", *one, "--body", "text")
    run.json(f"{recorder.url}/echo", *one, "--method", "PUT", "--body", "text")
    assert [(heard.method, heard.path, heard.body) for heard in recorder.heard] == [
        ("GET", "/echo?x=1", b""),
        ("POST", "/echo", b"text"),
        ("PUT", "/echo", b"text"),
    ]


def test_head_waits_for_no_body(recorder: Recorder, run: Command) -> None:
    """Though the answer announces one."""
    said = run.json(f"{recorder.url}/", "--method", "HEAD", "--requests", 10, "--concurrency", 2)
    assert (said.reasons, said.values["requests"]) == ([], 10)
    assert {heard.method for heard in recorder.heard} == {"HEAD"}


def test_headers_are_sent_as_given(recorder: Recorder, run: Command) -> None:
    """Beside the host, which is ours to name."""
    headers = ["--header", "Authorization: Bearer a:b", "--header", "X-Empty:"]
    run.json(f"{recorder.url}/", *headers, "--requests", 1, "--concurrency", 1)
    assert recorder.heard[0].headers == {
        "Host": f"127.0.0.1:{recorder.port}",
        "Authorization": "Bearer a:b",
        "X-Empty": "",
    }


def test_bodies_rotate_in_turn(recorder: Recorder, run: Command, tmp_path: Path) -> None:
    """Those of the command line first, then the files, byte for byte."""
    file = tmp_path / "body"
    file.write_bytes(b"\x00\xff\r\n")
    bodies = ["--body", "a", "--body-file", file, "--body", os.fsdecode(b"\xe9")]
    run.json(f"{recorder.url}/", *bodies, "--requests", 7, "--concurrency", 1)
    assert recorder.bodies == [b"a", b"\xe9", b"\x00\xff\r\n", b"a", b"\xe9", b"\x00\xff\r\n", b"a"]


def test_bodies_are_shuffled_by_the_seed(recorder: Recorder, run: Command) -> None:
    """The same order for the same seed, another for another, and each body as often as the others."""
    texts = [str(number) for number in range(8)]
    bodies = [argument for text in texts for argument in ("--body", text)]
    orders = []
    for seed in (3, 3, 4):
        run.json(f"{recorder.url}/", *bodies, "--shuffle", "--seed", seed, "--requests", 16, "--concurrency", 1)
        orders.append([body.decode() for body in recorder.bodies])
        recorder.heard.clear()
        random.Random(seed).shuffle(expected := list(texts))
        assert orders[-1] == expected * 2
    assert orders[0] == orders[1] != orders[2]


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


def test_right_answers_pass(recorder: Recorder, run: Command, tmp_path: Path) -> None:
    """One expectation for all, or one for each body."""
    one, two, right = tmp_path / "one", tmp_path / "two", tmp_path / "right"
    one.write_text("one")
    two.write_text("two")
    right.write_text("right")
    bodies = ["--body-file", one, "--body-file", two, "--requests", 20, "--concurrency", 2]
    assert run.json(f"{recorder.url}/echo", *bodies, "--expect-file", one, "--expect-file", two).reasons == []
    assert run.json(f"{recorder.url}/", *bodies, "--expect-file", right).reasons == []


def test_a_wrong_answer_fails_and_names_its_request(server: Serving, run: Command, tmp_path: Path) -> None:
    """Exit status 1, in JSON and in text."""
    right = tmp_path / "right"
    right.write_text("right")
    argv = [f"http://127.0.0.1:{server.port}/wrong?every=5", "--requests", 10, "--concurrency", 1]
    said = run.json(*argv, "--expect-file", right)
    assert said.status == 1
    assert said.reasons == [
        "wrong answers: 2 of 10 checked; the first: request 0 (payload 0): expected b'right', got b'wrong'"
    ]
    status, out, _ = run.text(*argv, "--expect-file", right)
    assert status == 1
    assert "\nINVALID:\n" in out
    assert "request 0 (payload 0): expected b'right', got b'wrong'" in out
    assert run.json(*argv).reasons == []


def test_mixed_up_answers_are_recognised(recorder: Recorder, run: Command, tmp_path: Path) -> None:
    """The answer of another request is worse than a wrong one: it is told as what it is."""
    files = []
    for text in ("one", "two"):
        file = tmp_path / text
        file.write_text(text)
        files += ["--body", text, "--expect-file", file]
    said = run.json(f"{recorder.url}/swap", *files, "--requests", 6, "--concurrency", 1)
    assert said.status == 1
    (reason,) = said.reasons
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


def test_a_server_that_is_not_there(run: Command) -> None:
    """Each request is counted as refused, and the exit status is 1."""
    url = f"http://127.0.0.1:{free_port()}/"
    said = run.json(url, "--requests", 8, "--concurrency", 4)
    assert (said.status, said.values["requests"], said.values["error_kinds"]) == (1, 0, {"connection refused": 8})
    status, out, _ = run.text(url, "--requests", 8, "--concurrency", 4)
    assert status == 1
    assert "[connection refused]  8" in out


def test_a_host_that_is_unknown(run: Command) -> None:
    """It is named, with exit status 1 and nothing on standard output."""
    status, out, err = run.text("http://no-such-host.invalid/", "--requests", 1, "--concurrency", 1)
    assert (status, out) == (1, "")
    assert "no-such-host.invalid" in err
    assert "Traceback" not in err


# -- secrets


@pytest.mark.parametrize("told_by", ["environment", "header"])
@pytest.mark.parametrize("before", [0, 270, 280, 290, 300])
def test_an_answer_that_repeats_a_secret_is_shown_without_it(
    monkeypatch: pytest.MonkeyPatch, recorder: Recorder, run: Command, told_by: str, before: int
) -> None:
    """Of this process or of the request, also where the begin that is shown ends within it."""
    if told_by == "environment":
        monkeypatch.setenv("HF_TOKEN", SECRET)
    headers = ["--header", f"Authorization: Bearer {SECRET}"] if told_by == "header" else []
    argv = [f"{recorder.url}/denied", "--body", f"{'no ' * (before // 3)}{SECRET}{' no' * 100}", *headers]
    said = run.json(*argv, "--requests", 2, "--concurrency", 1)
    assert said.values["error_kinds"] == {"status 500": 2}
    assert "status 500" in said.reasons[0]
    assert SECRET[:5] not in str(said.values)
    status, out, _ = run.text(*argv, "--requests", 2, "--concurrency", 1)
    assert status == 1
    assert "[status 500]  2, the first: request 0: b'" in out
    assert SECRET[:5] not in out


@pytest.mark.parametrize("before", [60, 70, 80])
def test_a_wrong_answer_that_repeats_a_secret_is_shown_without_it(
    monkeypatch: pytest.MonkeyPatch, recorder: Recorder, run: Command, tmp_path: Path, before: int
) -> None:
    """As an error's is."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    right = tmp_path / "right"
    right.write_text("right")
    body = f"{'no ' * (before // 3)}{SECRET}{' no' * 100}"
    said = run.json(f"{recorder.url}/echo", "--body", body, "--expect-file", right, "--requests", 2)
    assert said.reasons[0].startswith("wrong answers: 2 of 2 checked")
    assert SECRET[:5] not in str(said.values)


def test_an_error_is_told_without_secrets(monkeypatch: pytest.MonkeyPatch, run: Command) -> None:
    """Of a wrong argument, and of a load that cannot be."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert "--body-file /no/<HF_TOKEN>/file" in run.refused(HTTP, "--body-file", f"/no/{SECRET}/file")

    def fail(*_: object, **__: object) -> NoReturn:
        raise LoadFailed("no load", found=f"it said {SECRET}")

    monkeypatch.setattr(command, "run_load", fail)
    assert run.text(HTTP) == (1, "", "no load\n  found: it said <HF_TOKEN>\n")


def test_a_reader_that_leaves_early_is_no_traceback(server: Serving) -> None:
    """As of ``| head -1``."""
    reader, writer = os.pipe()
    os.close(reader)
    argv = [f"http://127.0.0.1:{server.port}/ok", "--requests", "20", "--concurrency", "2"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest_gpuserve.load", *argv],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=SAFETY_SECONDS,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a certificate for 127.0.0.1 that nobody trusts, with its key in one file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    names += ["-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(folder / "key")]
    subprocess.run(
        [openssl, "req", "-x509", *key, "-out", str(folder / "cert"), "-days", "2", *names],
        check=True,
        capture_output=True,
        timeout=SAFETY_SECONDS,
    )
    both = folder / "both"
    both.write_bytes((folder / "cert").read_bytes() + (folder / "key").read_bytes())
    return both


def test_a_certificate_is_checked_unless_told_otherwise(certificate: Path, run: Command) -> None:
    """An unknown one is an error of every request; with its own file, or unchecked, it serves."""
    with serving(certificate=str(certificate)) as server:
        argv = [f"https://127.0.0.1:{server.port}/ok", "--requests", 10, "--concurrency", 2]
        said = run.json(*argv)
        assert (said.status, said.values["error_kinds"], said.values["requests"]) == (1, {"tls": 10}, 0)
        assert server.seen("/ok").requests == 0
        for more in (["--ca-file", certificate.with_name("cert")], ["--insecure"]):
            said = run.json(*argv, *more)
            assert (said.reasons, said.values["requests"]) == ([], 10)
        assert server.seen("/ok").requests == 20


def test_a_certificate_for_another_name_is_refused(certificate: Path, run: Command) -> None:
    """Trusted it may be, but this host it does not name."""
    with serving(certificate=str(certificate)) as server:
        argv = [f"https://localhost:{server.port}/ok", "--requests", 2, "--concurrency", 1]
        said = run.json(*argv, "--ca-file", certificate.with_name("cert"))
        assert said.values["error_kinds"] == {"tls": 2}


def test_a_file_without_certificates_is_told_beforehand(run: Command, tmp_path: Path) -> None:
    """Missing, empty or something else."""
    url = "https://127.0.0.1:1/"
    file = tmp_path / "ca"
    assert f"--ca-file {file}" in run.refused(url, "--ca-file", file)
    file.write_text("")
    assert f"--ca-file {file}" in run.refused(url, "--ca-file", file)
    file.write_text("no certificate")
    assert f"--ca-file {file}" in run.refused(url, "--ca-file", file)


# -- wrong arguments

OPTIONS = (
    "--concurrency",
    "--engine",
    "--workers",
    "--think",
    "--steps",
    "--rate",
    "--arrivals",
    "--shape",
    "--burst",
    "--trace",
    "--max-in-flight",
    "--seed",
    "--requests",
    "--duration",
    "--warmup",
    "--processes",
    "--method",
    "--body",
    "--body-file",
    "--shuffle",
    "--header",
    "--stream",
    "--ca-file",
    "--insecure",
    "--timeout",
    "--expect-file",
    "--allowed-errors",
    "--json",
)

COUNTS = ("--concurrency", "--burst", "--requests", "--processes")
ABOVE_ZERO = ("--rate", "--duration", "--timeout")
FROM_ZERO = ("--think", "--warmup")


def unable_to_load(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let every load fail before it begins; returns the plans of those that were attempted."""
    plans: list[Any] = []

    def fail(plan: Any, **_: object) -> NoReturn:  # noqa: ANN401 -- a plan
        plans.append(plan)
        raise LoadFailed("no load in this test")

    monkeypatch.setattr(command, "run_load", fail)
    return plans


WRONG = (
    ((*COUNTS, "--seed"), ("x", "", "1.5", "-1", "1e3", "nan", "9" * 30)),
    (COUNTS, ("0",)),
    (ABOVE_ZERO, ("x", "", "0", "-1", "nan", "inf", "-inf", "1e300", "1e-300")),
    (FROM_ZERO, ("x", "", "-1", "nan", "inf", "1e300")),
    (("--allowed-errors",), ("x", "-0.1", "1", "nan", "inf")),
    (("--steps",), ("", "5", "x:1", "1:x", "0:1", "1:0", "-1:1", "1:-1", "1:nan", "1:inf", "1.5:1", "1:1,")),
    (("--header",), ("", "x", ": x", "a b: c", "Host: x", "X: \u00e9", "X: a\r\nY: b")),
    (("--method",), ("", "A B", "\u00e9", "GET\r\n")),
    (("--arrivals",), ("uniform",)),
    (("--think",), (None,)),
    (("--no-such-option",), (None,)),
    (("--conc",), ("5",)),
)
"""Options, and values that none of them can have; None is no value at all."""


@pytest.mark.parametrize(
    ("option", "value"), [(option, value) for options, values in WRONG for option in options for value in values]
)
def test_a_wrong_value_is_told_with_its_option(
    monkeypatch: pytest.MonkeyPatch, run: Command, option: str, value: str | None
) -> None:
    """One paragraph, exit status 2, and nothing is started."""
    plans = unable_to_load(monkeypatch)
    text = run.refused("http://127.0.0.1:1/", option, *([] if value is None else [value]))
    assert option in text.splitlines()[0]
    assert plans == []


@pytest.mark.parametrize("value", ["x", "0", "-1", "nan", "inf"])
def test_a_wrong_shape_or_ceiling_is_told_with_its_option(
    monkeypatch: pytest.MonkeyPatch, run: Command, value: str
) -> None:
    """Also where the option has its place."""
    plans = unable_to_load(monkeypatch)
    gamma = ["http://127.0.0.1:1/", "--rate", 5, "--arrivals", "gamma"]
    assert "--shape" in run.refused(*gamma, "--shape", value)
    assert "--max-in-flight" in run.refused(*gamma, "--max-in-flight", value)
    assert plans == []


HTTP = "http://127.0.0.1:1/"
GRPC = "grpc://127.0.0.1:1/service/method"
WORKER = "worker:///run/queue.sock"


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ([HTTP, "--rate", "5", "--concurrency", "5"], ["--rate", "--concurrency"]),
        ([HTTP, "--burst", "5", "--steps", "1:1"], ["--burst", "--steps"]),
        ([HTTP, "--trace", "x", "--rate", "5"], ["--trace", "--rate"]),
        ([HTTP, "--rate", "5", "--think", "1"], ["--think", "--concurrency", "--steps"]),
        ([HTTP, "--burst", "5", "--think", "1"], ["--think", "--concurrency", "--steps"]),
        ([HTTP, "--arrivals", "poisson"], ["--arrivals", "--rate"]),
        ([HTTP, "--burst", "5", "--arrivals", "poisson"], ["--arrivals", "--rate"]),
        ([HTTP, "--shape", "2"], ["--shape", "--arrivals gamma"]),
        ([HTTP, "--rate", "5", "--arrivals", "poisson", "--shape", "2"], ["--shape", "--arrivals gamma"]),
        ([HTTP, "--max-in-flight", "2"], ["--max-in-flight", "--rate"]),
        ([HTTP, "--shuffle"], ["--shuffle", "several bodies"]),
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
        ([WORKER, "--method", "GET"], ["--method", "http://"]),
        ([HTTP, "--header", "a: b", "--header", "A: c"], ["--header", "twice"]),
        ([HTTP, "--warmup", "10"], ["--warmup", "--duration"]),
        ([HTTP, "--warmup", "2", "--duration", "2"], ["--warmup", "--duration"]),
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
    monkeypatch: pytest.MonkeyPatch, run: Command, argv: list[str], named: list[str]
) -> None:
    """Nothing that was asked for is passed over in silence, and nothing is started."""
    plans = unable_to_load(monkeypatch)
    text = run.refused(*argv)
    assert [name for name in named if name not in text] == []
    assert plans == []


def test_more_processes_than_users_are_refused(run: Command) -> None:
    """As an option, not as an argument of a function."""
    text = run.refused(HTTP, "--processes", 3, "--concurrency", 2)
    assert "--processes: 3 processes cannot share 2 connections" in text
    assert "--processes 2 at most" in text


def test_more_users_than_open_files_are_refused(run: Command) -> None:
    """With the limit, and what helps."""
    text = run.refused(HTTP, "--concurrency", 10**9)
    assert "1000000000 connections" in text
    assert "ulimit" in text


def test_a_wrong_name_of_the_host_is_told_before_the_load(monkeypatch: pytest.MonkeyPatch, run: Command) -> None:
    """It is needed only afterwards, when it would cost the measurement."""
    plans = unable_to_load(monkeypatch)
    monkeypatch.setenv("GPUSERVE_HOST", "not / a name")
    assert "GPUSERVE_HOST" in run.refused(HTTP)
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
def test_no_arguments_end_in_a_traceback(argv: list[str], monkeypatch: pytest.MonkeyPatch, run: Command) -> None:
    """Whatever is typed is refused, or a load, or asks for help, of which ``-h`` is one."""
    plans = unable_to_load(monkeypatch)
    # As the real one: it can write whatever it is given.
    cast("TextIOWrapper", sys.stderr).reconfigure(errors="backslashreplace")
    with suppress(SystemExit):  # of a question for help
        status, out, err = run.text("http://127.0.0.1:1/", *argv)
        assert (status, out) == (1 if plans else 2, "")
        assert err


# -- Ctrl-C


@contextmanager
def started(*argv: object) -> Iterator[subprocess.Popen[str]]:
    """Run the command as a program of its own group, as a shell does."""
    with subprocess.Popen(
        [sys.executable, "-m", "pytest_gpuserve.load", *map(str, argv)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("in_json", [True, False])
def test_ctrl_c_tells_what_was_measured_as_not_decided(server: Serving, in_json: bool) -> None:  # noqa: FBT001 -- a parameter
    """Exit status 130; the numbers are there, the verdict is not; no engine is left."""
    url = f"http://127.0.0.1:{server.port}/ok?ms=5"
    options = ["--duration", 300, "--processes", 2, *(["--json"] if in_json else [])]
    with started(url, *options) as process:
        # Some of it must have been reported, which is done ten times a second.
        eventually(lambda: server.seen("/ok").requests > 0, "the load begins", SAFETY_SECONDS)
        time.sleep(0.5)
        engines = psutil.Process(process.pid).children()
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=SAFETY_SECONDS)
    assert (process.returncode, err) == (130, "")
    assert len(engines) == 2
    assert not any(alive(engine.pid) for engine in engines)
    reason = "interrupted by Ctrl-C: not decided"
    if in_json:
        values = json.loads(out)
        assert (values["valid"], values["reasons"][0]) == (False, reason)
        assert values["requests"] > 0
        assert values["latency"]["p50"] >= 0.005
    else:
        assert "Latency distribution:" in out
        assert f"\nINVALID:\n  {reason}\n" in out


@pytest.mark.parametrize("in_json", [True, False])
def test_an_engine_that_is_lost_in_mid_load_is_invalid(server: Serving, in_json: bool) -> None:  # noqa: FBT001 -- a parameter
    """Exit status 1; the numbers and the reason are there, and standard error is empty; no engine is left."""
    url = f"http://127.0.0.1:{server.port}/ok?ms=5"
    options = ["--duration", 300, "--processes", 2, *(["--json"] if in_json else [])]
    with started(url, *options) as process:
        # Some of it must have been reported, which is done ten times a second.
        eventually(lambda: server.seen("/ok").requests > 0, "the load begins", SAFETY_SECONDS)
        time.sleep(0.5)
        engines = psutil.Process(process.pid).children()
        engines[0].kill()
        out, err = process.communicate(timeout=SAFETY_SECONDS)
    assert (process.returncode, err) == (1, "")
    assert len(engines) == 2
    assert not any(alive(engine.pid) for engine in engines)
    reason = "lost in mid-load: the load engine died: exit status -9"
    if in_json:
        values = json.loads(out)
        assert (values["valid"], values["reasons"][0]) == (False, reason)
        assert values["requests"] > 0
    else:
        assert "Latency distribution:" in out
        assert f"\nINVALID:\n  {reason}\n" in out


def test_ctrl_c_before_anything_runs_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As while files are read."""

    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "plan_of", interrupted)
    monkeypatch.setattr(sys, "argv", ["load", HTTP])
    status = command.run()
    told = capsys.readouterr()
    assert (status, told.out, told.err) == (130, "", "")


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
    monkeypatch.setattr(command_progress, "QUIET_SECONDS", 0.2)


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
    """What nobody knows is not shown."""
    url = f"http://127.0.0.1:{server.port}/ok?ms=10"
    assert " s left" in shown_on(Screen(60), monkeypatch, url, "--steps", "1:0.4,2:0.4")
    shown = shown_on(Screen(60), monkeypatch, url, "--requests", 100, "--concurrency", 2)
    assert "/s" in shown
    assert "left" not in shown


def test_progress_fits_a_narrow_terminal(server: Serving, monkeypatch: pytest.MonkeyPatch, at_once: None) -> None:
    """A line that wraps could not be removed."""
    url = f"http://127.0.0.1:{server.port}/ok?ms=5"
    lines = LINE.findall(shown_on(Screen(10), monkeypatch, url, "--duration", 0.6))
    assert lines
    assert all(len(line) < 10 for line in lines)


def test_progress_is_removed_when_the_load_fails(
    server: Serving, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    """The error is told on an empty line."""

    def fail(plan: object, *, on_tick: Any, **_: object) -> NoReturn:  # noqa: ANN401 -- a callback
        from pytest_gpuserve.load.totals import RunningTotals
        from pytest_gpuserve.load.wire import Tick

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
    monkeypatch.setattr(command_progress, "QUIET_SECONDS", 0.2)
    main([url, "--duration", "0.6"])
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("CI", "true")
    assert shown_on(Screen(60), monkeypatch, url, "--duration", 0.6) == ""


def test_a_real_terminal_is_left_with_the_summary_alone(server: Serving) -> None:
    """Both outputs on one terminal, over more than two seconds: what stands before the summary was erased."""
    master, slave = pty.openpty()
    url = f"http://127.0.0.1:{server.port}/ok?ms=20"
    with subprocess.Popen(
        [sys.executable, "-m", "pytest_gpuserve.load", url, "--duration", "2.6"],
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        env=environment(),
    ) as process:
        os.close(slave)
        data = b""
        try:
            while piece := os.read(master, 1 << 16):
                data += piece
        except OSError:
            # The other end is closed.
            pass
        finally:
            process.kill()
            os.close(master)
    text = data.decode()
    progress, _, rest = text.rpartition("\x1b[K")
    assert " s left" in progress
    assert progress.endswith("\r")
    assert rest.startswith("Summary:")
