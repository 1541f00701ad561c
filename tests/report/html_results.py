"""Rich results of many tests, as a run on a GPU has them, for the tests of reports."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime
from pytest_gpuserve.measure.histogram import LOG_BASE, Histogram, bucket_of, seconds_of
from pytest_gpuserve.measure.telemetry import GpuTelemetry, Spread, Telemetry
from pytest_gpuserve.measure.window import COMPUTE, PER_REQUEST, QUEUE, SERVER, Client, GpuUse, Session, Start, Window
from pytest_gpuserve.report.results import LogTail, RunResult, SessionResult, TestResult
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.reason import ReasonKind
from pytest_gpuserve.verdict.verdict import Judgement, ReferenceKind, Verdict
from tests.support.reasons import because

if TYPE_CHECKING:
    from collections.abc import Iterable

HOSTILE: Final = (
    "</script><script>globalThis.hacked = 1</script>",
    '"><img src=x onerror="globalThis.hacked = 2">',
    "{{7*7}} {% raw %} ${7*7} %{7*7} %{customdata[0]}",
    "javascript:globalThis.hacked=3",
    "<a href='javascript:globalThis.hacked=4'>a</a> <b>bold</b>",
    "nul \x00 half \ud800 turned \u202e round \u2028 line \x1b[31m",
    "<!-- --> <![CDATA[ ]]> &lt;b&gt; &amp;amp;",
    "long " + "x" * 10_000,
)
"""What a page must show as it is, and never run."""

WINDOW_SECONDS: Final = 0.5
REQUESTS: Final = 800
"""In a window."""

USERS: Final = (1, 2, 4, 8, 16, 32, 64, 128)

UUID: Final = "GPU-11111111-2222-3333-4444-555555555555"

_MEDIAN_NS: Final = 5e6
_SPREAD: Final = 0.25


@dataclass(frozen=True)
class Speeds:
    """How fast a server answers.

    Args:
        median: Factor on the latencies.
        tail: Factor on those above the 98th percentile.
    """

    median: float = 1.0
    tail: float = 1.0


def session_result(tests: int, *, stored: bool = True) -> SessionResult:
    """A session of so many tests, each of one load; of them some got worse, some better, some are not decided.

    Args:
        tests: How many.
        stored: Whether they were compared with baselines, else with another revision, side by side.
    """
    return SessionResult(
        gpu={
            "name": "A100-SXM4-80GB",
            "product": "NVIDIA A100-SXM4-80GB",
            "memory_gib": 80.0,
            "driver": "550.54.15",
            "power_limit_watts": 400.0,
            "mig_profile": None,
            "ecc": True,
            "unknown": {"governor": "not told"},
        },
        host={"id": "host-a", "cpu": "A CPU", "cores": 16, "memory_gib": 128.0, "numa_nodes": None},
        tests=tuple(result_of_test(number, side_by_side=not stored) for number in range(tests)),
        notes=("recorded 2 new baselines",),
        places=("baselines: /project/baselines/A100-SXM4-80GB", "server logs: /tmp/gpuserve-logs"),
        header="A100-SXM4-80GB (NVIDIA A100-SXM4-80GB), gating against baselines/A100-SXM4-80GB",
        at="2025-01-02T03:04:05+00:00",
        commit="0123456789abcdef0123456789abcdef01234567",
        clean=True,
        software={"python": "3.11.9", "mosec": "0.9.5"},
        stored=stored,
    )


def result_of_test(number: int, *, side_by_side: bool) -> TestResult:
    """A test of a session: the loads of eight neighbours differ by their users."""
    users = USERS[number % len(USERS)]
    speeds = Speeds(0.4 + users / 20, 1 + (number % 3) / 2)
    base = Speeds(speeds.median, 1.0)
    kind: ReferenceKind = "against" if side_by_side else "baseline"
    judgements = judgements_of(number, kind)
    failed = any(not judgement.verdict.passes for judgement in judgements)
    return TestResult(
        f"suites/part_{number // 8}/test_serving.py::test_load_{number // 8}[{users}-float16]",
        "failed" if failed else "passed",
        [
            RunResult(
                "",
                (session(speeds, users),),
                judgements,
                {"load": "closed loop", "concurrency": str(users), "method": "POST", "path": "/inference"},
                {"server": "mosec", "app": "app.py", "app_sha256": "ab" * 32},
                base="HEAD~1" if side_by_side else None,
                base_sessions=(session(base, users),) if side_by_side else (),
            )
        ],
        "assert throughput >= baseline.throughput\nREGRESSED: throughput is 1432/s" if failed else "",
        tuple(LogTail(f"{number:03d}-mosec-{part}", "\n".join(_log_lines())) for part in range(2)),
    )


def _log_lines() -> Iterable[str]:
    return (f"2025-01-02T03:04:{line:02d} INFO worker {line % 4}: batch of {line} in 4.1 ms" for line in range(40))


_VERDICTS: Final = (
    Verdict.PASS,
    Verdict.REGRESSED,
    Verdict.PASS,
    Verdict.INCONCLUSIVE,
    Verdict.IMPROVED,
    Verdict.PASS,
    Verdict.MISSING,
    Verdict.PASS,
    Verdict.INVALID,
)


_ABSENT = because("there is no baseline of this test: record one", kind=ReasonKind.NO_ENTRY)
_THROTTLED = because("throttled: 3 of 8 windows, thermal slowdown", kind=ReasonKind.THROTTLED)
_UNDECIDED = because("this evidence decides a tolerance of 14 %, not of 5 %", kind=ReasonKind.UNDECIDED)


def judgements_of(number: int, kind: ReferenceKind) -> tuple[Judgement, ...]:
    """Judgements of four metrics, of which one is by no means as the others."""
    names = ("throughput", "latency.p50", "latency.p99", "batching_ratio")
    special = _VERDICTS[number % len(_VERDICTS)]
    return tuple(
        judgement_of(name, special if place == number % len(names) else Verdict.PASS, kind, number)
        for place, name in enumerate(names)
    )


def judgement_of(name: str, verdict: Verdict, kind: ReferenceKind, number: int) -> Judgement:
    """A judgement with numbers that fit its verdict."""
    metric = METRICS[name]
    if verdict is Verdict.MISSING:
        return Judgement.missing(metric, kind, *_ABSENT)
    if verdict is Verdict.INVALID:
        return Judgement.invalid(metric, kind, *_THROTTLED)
    worse = {Verdict.REGRESSED: 0.22, Verdict.IMPROVED: -0.12, Verdict.INCONCLUSIVE: 0.05}.get(verdict, 0.002)
    worse += 0.003 * (number % 7)
    reference = {"throughput": 2047.0, "latency.p50": 0.0051, "latency.p99": 0.0093}.get(name, 15.8)
    sign = -1 if metric.higher_is_better else 1
    reach = 0.09 if verdict is Verdict.INCONCLUSIVE else 0.02
    change = sign * worse
    return Judgement(
        metric,
        verdict,
        kind,
        value=reference * (1 + change),
        reference=reference,
        change=change,
        interval=(change - reach, change + reach),
        tolerance=metric.default_tolerance,
        detectable=0.04 if verdict is Verdict.INCONCLUSIVE else None,
        rounds=2,
        windows=32,
        reasons=_UNDECIDED if verdict is Verdict.INCONCLUSIVE else (),
    )


def session(speeds: Speeds, users: int, *, starts: int = 2, windows: int = 8) -> Session:
    """A session of a server of that speed on one GPU."""
    return Session(
        tuple(_start(speeds, users, number, windows) for number in range(starts)),
        "2025-01-02T03:04:05+00:00",
        batch_sizes={"1": 3, "2": 5, "4": 20, "8": 60, "16": 240},
        answers=REQUESTS * windows * starts,
        answers_checked=REQUESTS * windows * starts,
    )


def _start(speeds: Speeds, users: int, number: int, count: int) -> Start:
    windows = []
    begin_ns = 10**12 * (number + 1)
    for place in range(count):
        # Two windows were thrown away after the third.
        begin_ns += 10**9 if place == 3 else 0
        window = _window(replace(speeds, median=speeds.median * (1 + 0.01 * ((place * 7 + number) % 5))), begin_ns)
        begin_ns = window.end_ns
        windows.append(window)
    requests = sum(window.requests for window in windows)
    seconds = math.fsum(window.seconds for window in windows)
    mean = math.fsum(window.latency.sum_seconds for window in windows) / requests
    return Start(
        tuple(windows),
        cold_start_seconds=3.2,
        discarded=1,
        foreign_cores=0.2,
        cpu_share=0.3,
        client=Client(
            lag=Histogram({bucket_of(20_000): requests}),
            sending_seconds=0.02 * mean * requests,
            receiving_seconds=0.01 * mean * requests,
        ),
        settings={
            "max_batch_size": ServerSetting("16", "32"),
            "timeout": ServerSetting("10 ms", "10 ms"),
            "num": ServerSetting(None),
        },
        counters=_counters(mean, requests),
        telemetry=_telemetry(seconds, users),
        rejected=("SM clock fell to 900 MHz: thermal slowdown",) * 2,
    )


def _window(speeds: Speeds, begin_ns: int) -> Window:
    counts: dict[int, int] = {}
    shift = round(math.log(speeds.median) / LOG_BASE)
    further = round(math.log(speeds.tail) / LOG_BASE)
    for place, bucket in enumerate(_buckets()):
        moved = bucket + shift + (further if place > 0.98 * REQUESTS else 0)
        counts[moved] = counts.get(moved, 0) + 1
    seconds = WINDOW_SECONDS * speeds.median
    return Window(
        seconds,
        REQUESTS,
        {"status 503": 1},
        Histogram(
            counts,
            math.fsum(seconds_of(bucket) * count for bucket, count in counts.items()),
            seconds_of(max(counts)),
        ),
        items=REQUESTS,
        batches=REQUESTS // 12,
        client_cpu_seconds=0.1 * seconds,
        gpus=GpuUse(120.0, 12e9, 0.83, 1410.0 - 30 * (begin_ns % 4)),
        begin_ns=begin_ns,
        end_ns=begin_ns + round(seconds * 1e9),
    )


@cache
def _buckets() -> tuple[int, ...]:
    """Of the latencies of a window, from the least on: the quantiles of a lognormal distribution."""
    normal = NormalDist(math.log(_MEDIAN_NS), _SPREAD)
    return tuple(bucket_of(round(math.exp(normal.inv_cdf((place + 0.5) / REQUESTS)))) for place in range(REQUESTS))


def _counters(mean: float, requests: int) -> Counters:
    shares = {QUEUE: 0.45, f"{PER_REQUEST}input": 0.05, f"{PER_REQUEST}infer": 0.3, f"{PER_REQUEST}output": 0.04}
    stages = {name: StageTime(share * mean * requests, requests) for name, share in shares.items()}
    stages[SERVER] = StageTime(0.85 * mean * requests, requests)
    stages[COMPUTE] = StageTime(0.4 * mean * requests / 12, requests // 12)
    return Counters(requests, requests // 12, {"16": requests // 16}, stages, requests)


def _telemetry(seconds: float, users: int) -> Telemetry:
    busy = min(0.97, 0.2 + users / 100)
    gpu = GpuTelemetry(
        UUID,
        gpu_utilisation=Spread(busy, min(1.0, busy + 0.05), 40),
        memory_used_bytes=Spread(12e9, 12.2e9, 40),
        joules=280.0 * seconds,
    )
    return Telemetry(seconds, samples=40, covered=True, gpus={UUID: gpu})
