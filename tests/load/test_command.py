"""The command does what its options say, tells what is wrong with them beforehand, and never makes a good thing of it.

What is made of a load is asked of simulated ones, whose numbers are exact; the few real ones are at the end.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NoReturn, cast

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load import command
from pytest_gpuserve.load import run as load
from pytest_gpuserve.load.command import main, make_parser
from pytest_gpuserve.load.schedule import Burst, Closed, Constant, Gamma, Poisson, Schedule, Steps, Trace
from pytest_gpuserve.load.totals import RunningTotals
from pytest_gpuserve.load.wire import Plan, Tick, Tls
from tests.fakes.certificates import make_certificates
from tests.fakes.children.toolkit import ROOT, alive, eventually
from tests.fakes.http_server import SAFETY_SECONDS, serving
from tests.fakes.simulated_load import Reply, Sent, SimulatedEngines
from tests.fakes.threads import in_a_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import TextIOWrapper
    from pathlib import Path

NOISE = ("client late", "client held up", "in flight", "client saturated", "rate not reached")
"""Reasons that a busy machine alone can give."""

SECRET = "hf_abcdefghijkl"

CEILING = 50_000.0

HTTP = "http://127.0.0.1:1/"
GRPC = "grpc://127.0.0.1:1/service/method"
WORKER = "worker:///run/queue.sock"
OPTIONS = [name for action in make_parser()._actions for name in action.option_strings if action.dest != "help"]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the same of every machine."""
    monkeypatch.setattr(command, "load_ceiling", lambda *_: CEILING)
    for name in ("CI", "BUILD_NUMBER", "GPUSERVE_HOST"):
        monkeypatch.delenv(name, raising=False)


# -- running the command


@dataclass(frozen=True)
class Said:
    """What the command said in JSON."""

    status: int
    values: dict[str, Any]

    @property
    def reasons(self) -> list[str]:
        """Why it is invalid."""
        return cast("list[str]", self.values["reasons"])


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


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> SimulatedEngines:
    """Simulate every load: of a server that answers ``right`` after 10 ms, unless the test says otherwise."""
    simulated = SimulatedEngines()
    monkeypatch.setattr(load, "Engines", simulated)
    return simulated


def body_of(sent: Sent) -> bytes:
    """The body of a request."""
    return sent.payload.partition(b"\r\n\r\n")[2]


def echo(sent: Sent) -> Reply:
    """Answer with the request's body."""
    return Reply(body=body_of(sent))


# -- what is told


def test_json_has_what_a_script_needs(engines: SimulatedEngines, run: Command) -> None:
    """The agreed fields, with the numbers of this load, which two processes share."""
    said = run.json(HTTP, "--requests", 120, "--concurrency", 6, "--processes", 2)
    values = said.values
    assert (values["requests"], values["errors"], values["error_kinds"]) == (120, 0, {})
    assert (values["seconds"], values["throughput"]) == pytest.approx((0.2, 600))
    assert [values["latency"][name] for name in ("mean", "p50", "max")] == pytest.approx([0.01] * 3, rel=0.001)
    assert values["schedule"] == {"load": "closed loop", "concurrency": "6"}
    assert (values["processes"], values["engine"], values["client_ceiling"]) == (2, "local", CEILING)
    assert sum(len(part.opened) for part in engines.parts) == 6


def test_a_warm_up_is_not_counted(engines: SimulatedEngines, run: Command) -> None:
    """Of a second of one user who is answered every 10 ms what is answered before its half is left out."""
    said = run.json(HTTP, "--concurrency", 1, "--warmup", 0.5, "--duration", 1)
    assert (said.values["requests"], said.values["seconds"], len(engines.parts[0].sent)) == (51, 0.5, 100)


# -- what is planned


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


def test_a_trace_is_replayed(plans: list[Plan], run: Command, tmp_path: Path) -> None:
    """Each line's body at its time, in turn where no body is named; empty lines are none."""
    trace = tmp_path / "trace"
    trace.write_text("0 1\n\n0.15 0\r\n0.3\n  0.45  1  \n0.5")
    run.text(HTTP, "--trace", trace, "--body", "zero", "--body", "one", "--max-in-flight", 3)
    assert [plan.schedule for plan in plans] == [Trace(((0.0, 1), (0.15, 0), (0.3, 0), (0.45, 1), (0.5, 0)), 3)]


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


@pytest.mark.parametrize(
    ("argv", "sent"),
    [
        ([], b"GET /echo?x=1 HTTP/1.1\r\nHost: h:81\r\n\r\n"),
        (["--body", "text"], b"POST /echo?x=1 HTTP/1.1\r\nHost: h:81\r\nContent-Length: 4\r\n\r\ntext"),
        (
            ["--method", "PUT", "--body", "text"],
            b"PUT /echo?x=1 HTTP/1.1\r\nHost: h:81\r\nContent-Length: 4\r\n\r\ntext",
        ),
        (
            ["--header", "Authorization: Bearer a:b", "--header", "X-Empty:"],
            b"GET /echo?x=1 HTTP/1.1\r\nHost: h:81\r\nAuthorization: Bearer a:b\r\nX-Empty: \r\n\r\n",
        ),
        (["--method", "HEAD"], b"HEAD /echo?x=1 HTTP/1.1\r\nHost: h:81\r\n\r\n"),
    ],
)
def test_what_is_sent_is_what_was_asked_for(plans: list[Plan], run: Command, argv: list[str], sent: bytes) -> None:
    """GET, POST with a body, any other method; headers as given beside the host; HEAD waits for no body."""
    run.text("http://h:81/echo?x=1", *argv, "--timeout", 0.2)
    (plan,) = plans
    assert (plan.payloads, plan.head, plan.timeout_ns) == (((sent,),), sent.startswith(b"HEAD"), 200_000_000)


def test_bodies_rotate_in_turn_or_in_an_order_of_the_seed(plans: list[Plan], run: Command, tmp_path: Path) -> None:
    """Those of the command line first, then the files, byte for byte; each as often as the others."""
    file = tmp_path / "body"
    file.write_bytes(b"\x00\xff\r\n")
    argv = [HTTP, "--body", "a", "--body-file", file, "--body", os.fsdecode(b"\xe9")]
    run.text(*argv)
    run.text(*argv, "--shuffle", "--seed", 3)
    for plan in plans:
        bodies = [payload.partition(b"\r\n\r\n")[2] for (payload,) in plan.payloads]
        assert bodies == [b"a", b"\xe9", b"\x00\xff\r\n"]
    assert [(plan.shuffled, plan.seed) for plan in plans] == [(False, 0), (True, 3)]


# -- what comes back


@pytest.fixture
def right(tmp_path: Path) -> Path:
    """The answer that most servers of this file give."""
    file = tmp_path / "right"
    file.write_text("right")
    return file


def test_a_wrong_answer_fails_and_names_its_request(engines: SimulatedEngines, run: Command, right: Path) -> None:
    """Exit status 1, in JSON and in text."""
    engines.serve = lambda sent: Reply(body=b"right" if sent.number % 5 else b"wrong")
    argv = [HTTP, "--requests", 10, "--concurrency", 1]
    said = run.json(*argv, "--expect-file", right)
    reason = "wrong answers: 2 of 10 checked; the first: request 0 (payload 0): expected b'right', got b'wrong'"
    assert (said.status, said.reasons) == (1, [reason])
    status, out, _ = run.text(*argv, "--expect-file", right)
    assert status == 1
    assert f"\nINVALID:\n  {reason}" in out
    assert run.json(*argv).reasons == []


def test_right_and_mixed_up_answers_are_told_apart(engines: SimulatedEngines, run: Command, right: Path) -> None:
    """One expectation for all or one for each body; what is right for another request is told as what it is."""
    one, two = right.with_name("one"), right.with_name("two")
    one.write_text("one")
    two.write_text("two")
    argv = [HTTP, "--body-file", one, "--body-file", two, "--requests", 6, "--concurrency", 1]
    each = ["--expect-file", one, "--expect-file", two]
    assert run.json(*argv, "--expect-file", right).reasons == []
    engines.serve = echo
    assert run.json(*argv, *each).reasons == []
    engines.serve = lambda sent: Reply(body=b"two" if body_of(sent) == b"one" else b"one")
    (reason,) = run.json(*argv, *each).reasons
    assert reason.startswith("wrong answers: 6 of 6 checked, 6 of them right for another request; the first: request 0")
    assert reason.endswith("the answer to payload 1, not to payload 0: answers are mixed up")


def test_errors_may_be_allowed(engines: SimulatedEngines, run: Command) -> None:
    """Up to the share that is given, and none without it."""
    engines.serve = lambda sent: Reply(kind="" if sent.number % 10 else "status 500")
    argv = [HTTP, "--requests", 40, "--concurrency", 1]
    strict = run.json(*argv)
    assert (strict.status, strict.values["errors"], strict.values["error_kinds"]) == (1, 4, {"status 500": 4})
    assert strict.reasons[0].startswith("request errors: 4 of 40")
    assert run.json(*argv, "--allowed-errors", 0.1).reasons == []
    assert run.json(*argv, "--allowed-errors", 0.09).reasons != []


# -- secrets


@pytest.mark.parametrize("told_by", ["environment", "header"])
@pytest.mark.parametrize("before", [0, 60, 70, 80, 270, 280, 290, 300])
def test_an_answer_that_repeats_a_secret_is_shown_without_it(
    monkeypatch: pytest.MonkeyPatch, engines: SimulatedEngines, run: Command, right: Path, *, told_by: str, before: int
) -> None:
    """Of this process or of the request, in an error or a wrong answer, also where what is shown ends within it."""
    if told_by == "environment":
        monkeypatch.setenv("HF_TOKEN", SECRET)
    headers = ["--header", f"Authorization: Bearer {SECRET}"] if told_by == "header" else []
    body = f"{'no ' * (before // 3)}{SECRET}{' no' * 100}"
    argv = [HTTP, "--body", body, "--requests", 2, "--concurrency", 1, *headers]
    engines.serve = echo
    wrong = run.json(*argv, "--expect-file", right)
    assert wrong.reasons[0].startswith("wrong answers: 2 of 2 checked")
    engines.serve = lambda sent: Reply(kind="status 500", body=body_of(sent))
    denied = run.json(*argv)
    assert denied.values["error_kinds"] == {"status 500": 2}
    assert "status 500" in denied.reasons[0]
    status, out, _ = run.text(*argv)
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


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_a_wrong_name_of_the_host_is_told_before_the_load(
    monkeypatch: pytest.MonkeyPatch, plans: list[Plan], run: Command
) -> None:
    """It is needed only afterwards, when it would cost the measurement."""
    monkeypatch.setenv("GPUSERVE_HOST", "not / a name")
    assert "GPUSERVE_HOST" in run.refused(HTTP)
    assert plans == []


# -- the progress line


LINE = re.compile(r"\r([^\r\x1b]*)\x1b\[K")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run the command with a terminal so wide for standard error; gives what was written there."""

    def run(columns: int, *argv: object) -> str:
        terminal, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with os.fdopen(slave, "w") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stream)
            main([str(argument) for argument in argv])
            os.set_blocking(terminal, False)
            data = b""
            with suppress(OSError):
                while piece := os.read(terminal, 1 << 16):
                    data += piece
        os.close(terminal)
        return data.decode()

    return run


@pytest.mark.usefixtures("engines")
def test_progress_is_shown_on_a_terminal_and_removed(
    shown: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Rate, p99 and time left, on one line that is empty at the end; standard output holds nothing of it."""
    said = shown(60, HTTP, "--duration", 3, "--concurrency", 1)
    lines = LINE.findall(said)
    assert "".join(f"\r{line}\x1b[K" for line in lines) == said
    ends = ["100/s  p99 10.0 ms  1 s left", "100/s  p99 10.0 ms  0 s left", "-/s  p99 10.0 ms  0 s left", ""]
    assert ([lines[0], *lines[-3:]], len(lines)) == (ends, 13)
    out = capsys.readouterr().out
    assert out.startswith("Summary:")
    assert not {"\r", "\x1b"} & set(out)


@pytest.mark.usefixtures("engines")
def test_progress_knows_the_end_of_steps_and_none_of_requests(shown: Callable[..., str]) -> None:
    """What nobody knows is not shown, nor what is wider than the terminal: a line that wraps could not be removed."""
    assert " s left" in shown(60, HTTP, "--steps", "1:2,2:1")
    said = shown(60, HTTP, "--requests", 300, "--concurrency", 1)
    assert "/s" in said
    assert "left" not in said
    lines = LINE.findall(shown(10, HTTP, "--duration", 3, "--concurrency", 1))
    assert 0 < max(map(len, lines)) < 10


def test_progress_is_removed_when_the_load_fails(shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is told on an empty line."""

    def fail(plan: object, *, on_tick: Any, **_: object) -> NoReturn:  # noqa: ANN401 -- a callback
        on_tick(RunningTotals(), Tick(0, 0, 2 * 10**9))
        raise LoadFailed("it broke")

    monkeypatch.setattr(command, "run_load", fail)
    said = shown(60, HTTP)
    assert said.endswith("\r\x1b[Kit broke\r\n")
    assert "/s  p99 -" in said


@pytest.mark.usefixtures("engines")
def test_no_progress_in_ci_in_a_pipe_or_of_a_short_load(
    shown: Callable[..., str], run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a byte is written to standard error."""
    assert shown(60, HTTP, "--duration", 1.9, "--concurrency", 1) == ""
    longer = [HTTP, "--duration", 3, "--concurrency", 1]
    assert run.text(*longer)[2] == ""
    for name in ("CI", "BUILD_NUMBER"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "true")
            assert shown(60, *longer) == ""


# -- real loads


def environment() -> dict[str, str]:
    """What a child of the test gets: this process's environment, with the package to be found."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def test_a_load_is_summarised_like_hey(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a program: the parts of the summary in order, exit status 0 of a valid one, nothing on standard error."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    argv = [sys.executable, "-m", "pytest_gpuserve.load", "--requests", "40", "--concurrency", "10"]
    with serving() as server:
        # A busy machine may spoil a load, but not every one.
        for _ in range(10):
            done = subprocess.run(
                [*argv, f"http://127.0.0.1:{server.port}/ok?ms=100"],
                capture_output=True,
                text=True,
                env=environment(),
                timeout=SAFETY_SECONDS,
                check=False,
                cwd="/",
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


TOKENS = 6
GAP_SECONDS = 0.05
FIRST_SECONDS = 0.15


class Stream(BaseHTTPRequestHandler):
    """Answers with events at known times; on ``/chat`` with chunks of OpenAI's API, of three tokens each."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Send them, and the end mark."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        chat = self.path == "/chat"
        if chat:
            self._chunk(b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n')
        for number in range(TOKENS):
            time.sleep(GAP_SECONDS if number else FIRST_SECONDS)
            event = b'{"choices": [{"delta": {"content": "%d"}}]}' if chat else b'{"token": %d}'
            self._chunk(b"data: " + event % number + b"\n\n")
        if chat:
            self._chunk(b'data: {"choices": [], "usage": {"completion_tokens": %d}}\n\n' % (3 * TOKENS))
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 -- the standard library's signature
        """Say nothing."""


@pytest.mark.parametrize(("path", "tokens"), [("", None), ("chat", 3 * TOKENS)])
def test_streams_are_timed_by_their_content(run: Command, path: str, tokens: int | None) -> None:
    """First token and gaps are those of the server; chunks without content are none, and tokens as many as it says."""
    with in_a_thread(ThreadingHTTPServer(("127.0.0.1", 0), Stream)) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}/{path}"
        status, out, err = run.text(url, "--stream", "--requests", 4, "--concurrency", 2, "--json")
    values = json.loads(out)
    assert [reason for reason in values["reasons"] if not reason.startswith(NOISE)] == []
    assert (status == 0, err, values["requests"]) == (values["valid"], "", 4)
    rate = None if tokens is None else pytest.approx(4 * tokens / values["seconds"])
    assert values["output_tokens_per_second"] == rate
    assert values["tokens_from_usage"] is (path == "chat")
    last = values["ttft"]["mean"] + (TOKENS - 1) * values["itl"]["mean"]
    if tokens is not None:
        decode = values["latency"]["mean"] - values["ttft"]["mean"]
        assert values["tpot"]["mean"] == pytest.approx(decode / (tokens - 1), rel=1e-6)
    assert values["ttft"]["mean"] >= FIRST_SECONDS
    # With the last token ends an answer that is a moment longer, or as long but for the last digit.
    assert FIRST_SECONDS + (TOKENS - 1) * GAP_SECONDS <= last <= values["latency"]["mean"] * (1 + 1e-6)


def test_a_load_that_ctrl_c_cuts_short_tells_what_was_measured() -> None:
    """The numbers and the reason are there, and standard error is empty; it is invalid, and no engine is left."""
    argv = [sys.executable, "-m", "pytest_gpuserve.load", "--duration", "300", "--processes", "2", "--json"]
    with (
        serving() as server,
        subprocess.Popen(
            [*argv, f"http://127.0.0.1:{server.port}/ok?ms=5"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        ) as process,
    ):
        try:
            # Sixteen users need a third of a second for so many, and it is reported ten times a second.
            eventually(lambda: server.seen("/ok").requests > 1000, "the load is reported", SAFETY_SECONDS)
            engines = psutil.Process(process.pid).children()
            # As a terminal does: to all of them.
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=SAFETY_SECONDS)
        finally:
            process.kill()
    assert (process.returncode, err, len(engines)) == (130, "", 2)
    assert not any(alive(engine.pid) for engine in engines)
    values = json.loads(out)
    assert (values["valid"], values["reasons"][0]) == (False, "interrupted by Ctrl-C: not decided")
    assert values["requests"] > 0
    assert values["latency"]["p50"] >= 0.005
