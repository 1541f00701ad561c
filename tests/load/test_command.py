"""The command does what its options say, tells what is wrong with them beforehand, and never makes a good thing of it.

The reports are of scripted loads, whose numbers are exact. A real load is at the end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load import __main__ as command
from pytest_gpuserve.load.__main__ import main
from pytest_gpuserve.load.schedule import Closed, Constant, Poisson, Schedule
from pytest_gpuserve.load.tick import Tick
from pytest_gpuserve.load.wire import Plan
from tests.fakes.children.toolkit import ROOT, alive, eventually
from tests.fakes.http_server import SAFETY_SECONDS, serving
from tests.load.ticks import alike, reporting, tick_of

MS = 1_000_000
HTTP = "http://127.0.0.1:1/"
GRPC = "grpc://127.0.0.1:1/service/method"
SECRET = "hf_abcdefghijkl"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the same of every machine."""
    monkeypatch.delenv("GPUSERVE_HOST", raising=False)


class Command:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def text(self, *argv: object) -> tuple[int, str, str]:
        """Return exit status, standard output and standard error."""
        try:
            status = main([str(argument) for argument in argv])
        except SystemExit as ended:
            status = int(ended.code or 0)
        captured = self._capsys.readouterr()
        return status, captured.out, captured.err

    def json(self, *argv: object) -> dict[str, Any]:
        """Run a load; the exit status always says whether it is valid."""
        status, out, err = self.text(*argv, "--json")
        values: dict[str, Any] = json.loads(out)
        assert (status, err) == (0 if values["valid"] else 1, "")
        assert values["valid"] == (not values["reasons"])
        return values

    def refused(self, *argv: object) -> str:
        """Return the text on a wrong argument: one paragraph, with an empty standard output."""
        status, out, err = self.text(*argv)
        assert (status, out) == (2, "")
        assert "Traceback" not in err
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


def good(number: int, *, last: bool = False, **more: Any) -> Tick:  # noqa: ANN401 -- of the tick
    """A tick of four users whose answers take 10 ms."""
    return tick_of(number, 40, 10 * MS, last=last, **more)


def failed(kind: str, sample: str) -> Tick:
    """All of a load whose nine requests failed."""
    return tick_of(0, 0, 0, errors={kind: 9}, error_samples={kind: sample}, last=True)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Tick]:
    """Ticks of every load: a second of good answers, unless the test sets others."""
    ticks = [good(number, last=number == 9) for number in range(10)]
    reporting(monkeypatch, ticks)
    return ticks


# -- what the options ask for


@pytest.mark.parametrize(
    ("options", "schedule", "end"),
    [
        ("", Closed(16), (None, 10 * 10**9)),
        ("--concurrency 4 --requests 9", Closed(4), (9, None)),
        ("--rate 50 --duration 3", Constant(50.0), (None, 3 * 10**9)),
        ("--rate 50 --arrivals poisson --max-in-flight 7 --requests 9", Poisson(50.0, max_in_flight=7), (9, None)),
    ],
)
def test_options_say_when_requests_are_sent(
    run: Command, plans: list[Plan], options: str, schedule: Schedule, end: tuple[int | None, int | None]
) -> None:
    """The default is ten seconds; a load that never began is reported, with exit status 1."""
    status, out, err = run.text(HTTP, *options.split())
    assert (status, out, "no load in this test" in err) == (1, "", True)
    (plan,) = plans
    assert (plan.schedule, plan.requests, plan.nanoseconds) == (schedule, *end)


def test_options_say_what_is_sent(run: Command, plans: list[Plan], tmp_path: Path) -> None:
    """Bodies rotate, in their order, by POST; without one it is a GET; gRPC sends the file as the message."""
    file = tmp_path / "body"
    file.write_bytes(b"\xff\n")
    run.text(HTTP, "--body", "a", "--body-file", file, "--header", "X: y", "--stream", "--timeout", "2")
    run.text(HTTP)
    run.text(GRPC, "--body-file", file)
    both, plain, grpc = plans
    assert [form.partition(b"\r\n\r\n")[2] for (form,) in both.payloads] == [b"a", b"\xff\n"]
    assert all(form.startswith(b"POST / HTTP/1.1\r\n") and b"\r\nX: y\r\n" in form for (form,) in both.payloads)
    assert (both.endpoint.protocol, both.timeout_ns) == ("sse", 2 * 10**9)
    assert plain.payloads[0][0].startswith(b"GET / HTTP/1.1\r\n")
    assert (grpc.payloads, grpc.endpoint.rpc) == (((b"\xff\n",),), "/service/method")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("", "the following arguments are required: url"),
        ("ftp://h", "not a URL that can be loaded"),
        (f"{HTTP} --wrong", "unrecognized arguments: --wrong"),
        (f"{HTTP} --concurrency 0", "must be a whole number of at least 1, not '0'"),
        (f"{HTTP} --requests 1e3", "not '1e3'"),
        (f"{HTTP} --rate nan", "a number above 0, not 'nan'"),
        (f"{HTTP} --allowed-errors 1", "a share of the requests"),
        (f"{HTTP} --rate 5 --concurrency 5", "contradict each other"),
        (f"{HTTP} --arrivals poisson", "only with --rate"),
        (f"{HTTP} --max-in-flight 5", "only with --rate"),
        (f"{HTTP} --warmup 10", "leaves nothing of the load"),
        (f"{HTTP} --header X", "'NAME: VALUE'"),
        (f"{HTTP} --header X:y --header x:z", "each name once"),
        (f"{HTTP} --body-file /no/where", "cannot be read"),
        (f"{GRPC} --stream", "apply only to http"),
        (f"{GRPC} --header X:y", "apply only to http"),
        (f"{HTTP} --concurrency 10000000", "open files"),
        (f"{HTTP} --concurrency 2 --processes 3", "processes"),
    ],
)
def test_a_wrong_argument_is_told(run: Command, argv: str, said: str) -> None:
    """A wrong argument is told before anything is sent, in one paragraph, with exit status 2."""
    assert said in run.refused(*argv.split())


# -- what is said of a load


def test_a_load_is_told_in_numbers(run: Command, reports: list[Tick]) -> None:
    """A good load has the requested number of requests, with their times in seconds."""
    values = run.json(HTTP, "--concurrency", 4, "--requests", 400)
    assert (values["requests"], values["errors"], values["valid"]) == (400, 0, True)
    assert values["latency"]["p50"] == pytest.approx(0.010, rel=0.01)
    assert values["throughput"] == pytest.approx(400)
    assert (values["service"], values["ttft"]) == (None, None)
    reports[:] = [
        good(number, last=number == 9, service=alike(40, 10 * MS), lag=alike(40, 10_000)) for number in range(10)
    ]
    open_loop = run.json(HTTP, "--rate", 400, "--requests", 400)
    assert open_loop["service"]["p50"] == pytest.approx(0.010, rel=0.01)


def test_a_load_is_told_in_words(run: Command, reports: list[Tick]) -> None:
    """The text has a few lines, the last of which is the validity."""
    status, out, _ = run.text(HTTP, "--concurrency", 4, "--requests", 400)
    lines = out.splitlines()
    assert (status, lines[-1]) == (0, "VALID")
    assert lines[0].startswith("requests    400 in ")
    assert "p99 10.0 ms" in lines[2]
    reports[:] = [failed("status 503", "request 0: b'no'")]
    status, out, _ = run.text(HTTP, "--requests", 9)
    assert (status, "status 503: 9, the first: " in out, "INVALID: request errors" in out) == (1, True, True)


def test_secrets_are_shown_by_their_names(run: Command, reports: list[Tick], monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that a server repeats, sent or of this process's variables, is shown by its name."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    reports[:] = [failed("status 500", f"request 0: b'{SECRET} hunter22xyz'")]
    argv = [HTTP, "--requests", 9, "--header", "Authorization: hunter22xyz"]
    for told in (run.text(*argv)[1], *run.json(*argv)["reasons"]):
        assert SECRET not in told
        assert "hunter22xyz" not in told


# -- real loads


def test_a_load_that_ctrl_c_cuts_short_tells_what_was_measured() -> None:
    """An interrupted load shows its numbers and the reason, is invalid, and leaves no engine."""
    argv = [sys.executable, "-m", "pytest_gpuserve.load", "--duration", "300", "--processes", "2", "--json"]
    with (
        serving() as server,
        subprocess.Popen(
            [*argv, f"http://127.0.0.1:{server.port}/ok?ms=5"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
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
