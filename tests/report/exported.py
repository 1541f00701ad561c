"""Sessions as exports are made of them, and names that no export may stumble over."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.measure.counters import Counters, StageTime
from pytest_gpuserve.measure.window import PER_REQUEST, QUEUE, Client, Session, Start
from pytest_gpuserve.report.results import RunResult, SessionResult, TestResult
from tests.support.builders import COMMIT, judgement, session, start, window

if TYPE_CHECKING:
    from collections.abc import Sequence

NODEID = "suites/perf/test_perf.py::test_it[8]"

HOSTILE = (
    'test_z[a"b\\]',
    "test_z[a\nb\r\tc]",
    "test_z[{a},=b}]",
    "test_z[</script><b>]",
    "test_z[`@everyone`|x|]",
    "test_z[\x1b[31mred\x00]",
    "test_z[\u202eabc\u2028]",
    "test_z[\ud800]",
    "test_z[漢字]",
    "=cmd|' /C calc'!A0",
    "test_z[a; =1+1]",
    "# HELP x y",
    " ",
    "test_" + "ü" * 1000,
)

NAMES = st.lists(st.sampled_from(HOSTILE) | st.text(min_size=1, max_size=30), min_size=1, max_size=4)
"""Names of tests; two of them may be the same."""

GPU = {"name": "T4", "product": "Tesla T4", "driver": "550.54", "cuda": None, "ecc": True}
HOST = {"id": "host-a", "cpu": "A CPU", "cores": 2, "memory_gib": 4.0, "system": "Debian 12", "kernel": "6.1"}


def load_of(
    *judgements: Judgement, label: str = "", sessions: Sequence[Session] | None = None, users: int | None = 8
) -> RunResult:
    """A closed loop, or an open one without users, of sound sessions; two starts without any."""
    load = {"load": "open loop, constant"} if users is None else {"load": "closed loop", "concurrency": str(users)}
    measured = (session(),) if sessions is None else tuple(sessions)
    return RunResult(label, measured, judgements, load, {"server": "mosec"}, users=users)


def overruled_and_last_word() -> tuple[Judgement, Judgement]:
    """What a baseline said of a throughput, and what counts: that of its commit side by side, which let it pass."""
    paired = replace(judgement(Verdict.PASS, kind="against", reasons=("that counts",)), change=-0.01, interval=None)
    return judgement(Verdict.REGRESSED).overrule(), paired


def result_of(*tests: TestResult, commit: str | None = COMMIT) -> SessionResult:
    """A session of these tests on a card."""
    return SessionResult(
        gpu=GPU,
        host=HOST,
        tests=tests,
        at="2025-01-02T03:00:00+00:00",
        commit=commit,
        clean=True,
        software={"python": "3.11.9", "mosec": "0.9.6"},
    )


def one_test(*loads: RunResult, nodeid: str = NODEID, outcome: str = "passed") -> SessionResult:
    """A session of one test."""
    return result_of(TestResult(nodeid, outcome, list(loads)))


def named(*nodeids: str) -> SessionResult:
    """A session of tests of these names, each of one load."""
    return result_of(*(TestResult(nodeid, "passed", [load_of()]) for nodeid in nodeids))


def triton_start(*, batch: int = 4, requests: int = 100) -> Start:
    """A start of a server that counts by request: of 10 ms a request waits 2 ms, and 6 ms are its batch's."""
    times = {QUEUE: 2e-3, f"{PER_REQUEST}input": 1e-3, f"{PER_REQUEST}infer": 4e-3, f"{PER_REQUEST}output": 1e-3}
    return replace(
        start(window((0.010,) * requests)),
        counters=Counters(
            items=batch * requests,
            batches=requests,
            stages={name: StageTime(seconds * requests, requests) for name, seconds in times.items()},
            requests=requests,
        ),
        client=Client(sending_seconds=1e-3 * requests, receiving_seconds=0.5e-3 * requests),
    )
