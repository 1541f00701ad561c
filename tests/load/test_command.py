"""The command does what its options say, tells what is wrong with them beforehand, and never makes a good thing of it.

The reports are of scripted loads, whose numbers are exact. A real load is at the end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeAlias

import msgspec
import psutil
import pytest

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load import __main__ as command
from pytest_gpuserve.load.__main__ import main
from pytest_gpuserve.load.schedule import Closed, Constant, Poisson, Schedule
from pytest_gpuserve.load.wire import Plan
from pytest_gpuserve.measure.window import Streams, Window
from tests.fakes.children.toolkit import ROOT, alive, eventually
from tests.fakes.http_server import SAFETY_SECONDS, serving
from tests.fakes.scripted_engines import alike, reporting, tick_of

Run: TypeAlias = "Callable[..., tuple[int, str, str]]"

MS = 1_000_000
HTTP = "http://127.0.0.1:1/"
GRPC = "grpc://127.0.0.1:1/service/method"
SECRET = "hf_abcdefghijkl"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process; its exit status, standard output and standard error."""

    def told(*argv: object) -> tuple[int, str, str]:
        try:
            status = main([str(argument) for argument in argv])
        except SystemExit as ended:
            status = int(ended.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return told


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
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Window]:
    """Ticks of every load: a second in which four users have answers after 10 ms, unless the test sets others."""
    ticks = [tick_of(number, 40, 10 * MS, last=number == 9) for number in range(10)]
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
    run: Run, plans: list[Plan], options: str, schedule: Schedule, end: tuple[int | None, int | None]
) -> None:
    """The default is ten seconds; a load that never began is reported, with exit status 1."""
    status, out, err = run(HTTP, *options.split())
    assert (status, out, "no load in this test" in err) == (1, "", True)
    (plan,) = plans
    assert (plan.schedule, plan.requests, plan.nanoseconds) == (schedule, *end)


def test_options_say_what_is_sent(run: Run, plans: list[Plan], tmp_path: Path) -> None:
    """Bodies rotate, in their order, by POST; without one it is a GET; gRPC sends the file as the message."""
    file = tmp_path / "body"
    file.write_bytes(b"\xff\n")
    run(HTTP, "--body", "a", "--body-file", file, "--header", "X: y", "--stream", "--timeout", "2")
    run(HTTP)
    run(GRPC, "--body-file", file)
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
        (f"{HTTP} --rate nan", "a number above 0, not 'nan'"),
        (f"{HTTP} --allowed-errors 1", "a share of the requests"),
        (f"{HTTP} --rate 5 --concurrency 5", "contradict each other"),
        (f"{HTTP} --arrivals poisson", "only with --rate"),
        (f"{HTTP} --warmup 10", "leaves nothing of the load"),
        (f"{HTTP} --header X:y --header x:z", "each name once"),
        (f"{HTTP} --body-file /no/where", "cannot be read"),
        (f"{GRPC} --header X:y", "apply only to http"),
        (f"{HTTP} --concurrency 2 --processes 3", "processes"),
    ],
)
def test_a_wrong_argument_is_told(run: Run, argv: str, said: str) -> None:
    """A wrong argument is told before anything is sent, in one paragraph, with exit status 2."""
    status, out, err = run(*argv.split())
    assert (status, out, said in err, "Traceback" in err) == (2, "", True, False)
    assert err.count("\n") <= 6


# -- what is said of a load


def test_a_load_is_told_in_numbers(run: Run, reports: list[Window]) -> None:
    """The numbers are JSON, with times in seconds; service times are those of an open loop."""
    status, out, err = run(HTTP, "--concurrency", 4, "--requests", 400, "--json")
    values = json.loads(out)
    assert (status, err, values["valid"], values["reasons"]) == (0, "", True, [])
    assert (values["requests"], values["errors"], values["service"], values["ttft"]) == (400, 0, None, None)
    assert values["latency"]["p50"] == pytest.approx(0.010, rel=0.01)
    assert values["throughput"] == pytest.approx(400)
    reports[:] = [msgspec.structs.replace(tick, service=tick.latency, lag=alike(40, 10_000)) for tick in reports]
    _, out, _ = run(HTTP, "--rate", 400, "--requests", 400, "--json")
    assert json.loads(out)["service"]["p50"] == pytest.approx(0.010, rel=0.01)


@pytest.mark.parametrize(("tokens", "with_usage", "rate"), [(80, 40, 800), (80, 39, None), (-1, 40, None)])
def test_tokens_are_known_if_every_answer_counts_them(
    run: Run, reports: list[Window], tokens: int, with_usage: int, rate: float | None
) -> None:
    """The client cannot count them, because a chunk may hold several."""
    streams = Streams(ttft=alike(40, 5 * MS), tokens=tokens, with_usage=with_usage)
    reports[:] = [msgspec.structs.replace(tick, streams=streams) for tick in reports]
    values = json.loads(run(HTTP, "--stream", "--concurrency", 4, "--requests", 400, "--json")[1])
    assert (values["output_tokens_per_second"], values["tpot"]["mean"]) == (rate, None)
    assert values["ttft"]["p50"] == pytest.approx(0.005, rel=0.01)


def test_a_load_is_told_in_words(run: Run, reports: list[Window], monkeypatch: pytest.MonkeyPatch) -> None:
    """A few lines end with the validity; a rate in no time is unknown, a secret that a server repeats is not shown."""
    status, out, _ = run(HTTP, "--concurrency", 4, "--requests", 400)
    lines = out.splitlines()
    assert (status, lines[-1]) == (0, "VALID")
    assert lines[0].startswith("requests    400 in ")
    assert "p99 10.0 ms" in lines[2]
    monkeypatch.setenv("HF_TOKEN", SECRET)
    samples = {"status 500": f"request 0: b'{SECRET} hunter22xyz'"}
    reports[:] = [tick_of(0, 0, 0, end_ns=0, errors={"status 500": 9}, error_samples=samples, last=True)]
    argv = [HTTP, "--requests", 9, "--header", "Authorization: hunter22xyz"]
    for more, valid, rate in (
        ([], "INVALID: request errors", "throughput  -"),
        (["--json"], '"valid": false', '"throughput": null'),
    ):
        status, out, _ = run(*argv, *more)
        assert (status, "status 500: 9" in out, valid in out, rate in out) == (1, True, True, True)
        assert SECRET not in out
        assert "hunter22xyz" not in out


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
