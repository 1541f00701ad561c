"""Small windows, sessions, entries and judgements for the tests of what is made of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import pytest

from pytest_gpuserve.builds.checkout import Revision
from pytest_gpuserve.compare.baseline_store import RunEnvironment
from pytest_gpuserve.device import Device
from pytest_gpuserve.device.gpu import Gpu
from pytest_gpuserve.device.host import Host
from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.measure.histogram import Histogram, bucket_of
from pytest_gpuserve.measure.rounds import ARMS, Arm, Round
from pytest_gpuserve.measure.window import CACHED_TOKENS, PROMPT_TOKENS, Session, Start, Streams, Window
from pytest_gpuserve.report.results import RunResult, SessionResult, TestResult
from pytest_gpuserve.store.schema import Entry, session_record
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.verdict import Judgement, ReferenceKind, Verdict

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OCCASION = "2025-01-02T03:00:00+00:00"
OTHER_COMMIT = "fedcba9876543210fedcba9876543210fedcba98"


def histogram(latencies_seconds: Iterable[float]) -> Histogram:
    """The histogram of latencies in seconds."""
    nanoseconds = [round(latency * 1e9) for latency in latencies_seconds]
    return Histogram(dict(Counter(map(bucket_of, nanoseconds))), sum(nanoseconds), max(nanoseconds, default=0))


def window(
    latencies: Sequence[float] = (0.010,) * 10,
    *,
    seconds: float = 0.5,
    items: int | None = 40,
    batches: int | None = 10,
    **fields: Any,  # noqa: ANN401 -- of the window
) -> Window:
    """A window in which these latencies, in seconds, were measured, with these fields."""
    made = Window(
        end_ns=round(seconds * 1e9),
        requests=len(latencies),
        latency=histogram(latencies),
        counters=None if items is None or batches is None else Counters(items, batches, {"4": batches}),
        cpu_ns=10_000_000,
    )
    return msgspec.structs.replace(made, **fields)


def streamed(
    plain: Window, *, ttft: float = 0.004, tpot: float = 0.001, tokens: int = 11, usage: bool = True, good: int = 0
) -> Window:
    """The same window of streams: of each request so many tokens, one a chunk, at even distances in seconds."""
    count = plain.requests
    return msgspec.structs.replace(
        plain,
        streams=Streams(
            ttft=histogram([ttft] * count),
            itl=histogram([tpot] * (count * (tokens - 1))),
            tpot=histogram([tpot] * count if usage else ()),
            tokens=count * tokens,
            with_usage=count if usage else 0,
            usage_tokens=count * tokens if usage else 0,
            silent_chunks=0 if usage else count * tokens,
        ),
        good=good,
    )


def cached(*shares: float, requests: int = 10) -> list[Window]:
    """Windows of a server that had so much of the prompts in its cache; of 1000 prompt tokens each."""
    return [tallied({PROMPT_TOKENS: 1000, CACHED_TOKENS: round(1000 * share)}, requests=requests) for share in shares]


def tallied(tallies: dict[str, int], *, requests: int = 10) -> Window:
    """A window of a server that counted these besides its batches."""
    return window((0.01,) * requests, counters=Counters(40, 10, tallies=tallies))


def start(*windows: Window, cold_start_seconds: float = 1.5) -> Start:
    """A start of these windows; of four alike ones without any."""
    return Start(windows or (window(),) * 4, cold_start_seconds, answers=40, answers_checked=40)


def session(*starts: Start, at: str = "2025-01-02T03:04:05+00:00", problems: tuple[str, ...] = ()) -> Session:
    """A session of these starts; of two alike ones without any."""
    return Session(
        starts or (start(), start()),
        at,
        problems=because(*problems),
        host_reading=-3.5,
    )


def here(host: str = "host-a", *, commit: str | None = COMMIT, clean: bool = True) -> RunEnvironment:
    """Circumstances on a CPU."""
    machine = Host(id=host, cpu="A CPU", cores=2, memory_bytes=4 * 2**30, kernel="6.1", system="Debian 12")
    content = commit and f"{commit if clean else commit[::-1]}"
    revision = Revision(commit, clean, content)
    return RunEnvironment(Device("cpu", None, machine), {"python": "3.11.9"}, revision, OCCASION)


def on_gpu(where: RunEnvironment) -> RunEnvironment:
    """The same with a GPU."""
    gpu = Gpu(0, "NVIDIA X", "X", "GPU-1", None, "560.1", "12.6", 300.0, None, None)
    return replace(where, device=replace(where.device, name="X", gpu=gpu))


def entry(*sessions: Session, commit: str | None = COMMIT) -> Entry:
    """The entry of these sessions; of one without any."""
    where = here(commit=commit)
    return Entry(
        workload={"server": "mosec", "concurrency": "50"},
        information={"app_sha256": "ab" * 32},
        host=where.host_record(),
        device=where.device_record(),
        software=dict(where.software),
        sessions=[session_record(each, OCCASION) for each in sessions or (session(),)],
        commit=commit,
        content=where.revision.content,
    )


def small_entries() -> dict[str, Entry]:
    """The entries of a file that is quickly read: one of two starts."""
    return {"test_a[1]": entry(session(start(window()), start(window((0.01, 0.02, 0.03)))))}


def judgement(
    verdict: Verdict = Verdict.REGRESSED,
    metric: str = "throughput",
    *,
    kind: ReferenceKind = "baseline",
    reasons: tuple[Reason | str, ...] = (),
) -> Judgement:
    """A judgement with all its numbers, or with none where the verdict has none; a text is a remark."""
    typed = tuple(Reason(ReasonKind.REMARK, reason) if isinstance(reason, str) else reason for reason in reasons)
    if verdict in (Verdict.MISSING, Verdict.INVALID):
        return Judgement(METRICS[metric], verdict, kind, reasons=typed or because("a reason"))
    return Judgement(
        METRICS[metric],
        verdict,
        kind,
        value=1432.0,
        reference=2047.0,
        change=-0.301,
        interval=(-0.341, -0.262),
        tolerance=0.05,
        detectable=0.06 if verdict is Verdict.INCONCLUSIVE else None,
        rounds=2,
        reasons=typed,
    )


def result_of(
    nodeid: str,
    *judgements: Judgement,
    sessions: tuple[Session, ...] | None = None,
    outcome: str = "failed",
    problem: str = "",
) -> TestResult:
    """The result of a test of one load."""
    measured = (session(),) if sessions is None else sessions
    run = RunResult("", measured, judgements, {"load": "closed loop"}, {"server": "mosec"})
    return TestResult(nodeid, outcome, [run], problem)


def run_of(*tests: TestResult, stored: bool = True, update: str = "") -> SessionResult:
    """A run of these tests on a T4, of committed code."""
    return SessionResult({"name": "T4"}, {}, tests, commit=COMMIT, clean=True, stored=stored, update=update)


def said(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """The texts of reasons."""
    return tuple(map(str, reasons))


def because(*texts: str, kind: ReasonKind = ReasonKind.REMARK) -> tuple[Reason, ...]:
    """Reasons of one kind with these texts."""
    return tuple(Reason(kind, text) for text in texts)


def kinds(reasons: Iterable[Reason]) -> list[ReasonKind]:
    """Kinds of the reasons."""
    return [reason.kind for reason in reasons]


AT: Final = "2025-01-02T03:04:05+00:00"
WINDOW_SECONDS: Final = 0.5
LATENCY_SECONDS: Final = 0.010
BATCH: Final = 4


def window_at(cost: float, *, requests: int = 1000, batch_cost: float | None = None) -> Window:
    """A window of which every metric has this log cost; batches may have their own."""
    latency = LATENCY_SECONDS * math.exp(cost)
    return Window(
        end_ns=round(WINDOW_SECONDS * 1e9 * math.exp(cost)),
        requests=requests,
        latency=Histogram(
            {bucket_of(round(latency * 1e9)): requests} if requests else {},
            round(latency * 1e9) * requests,
            round(latency * 1e9),
        ),
        counters=Counters(BATCH * requests, round(requests * math.exp(cost if batch_cost is None else batch_cost))),
    )


def round_of(differences: Sequence[float], *, requests: int = 1000, one_at_a_time: bool = False) -> Round:
    """A round of blocks with these differences and no other noise."""
    costs = [cost for difference in differences for cost in (difference, difference)]
    base = tuple(window_at(0.0, requests=requests) for _ in costs)
    candidate = tuple(window_at(cost, requests=requests) for cost in costs)
    return round_with(base, candidate, one_at_a_time=one_at_a_time)


def round_with(base: Sequence[Window], candidate: Sequence[Window], *, one_at_a_time: bool = False) -> Round:
    """A round of these windows of each server."""
    starts: dict[Arm, tuple[Start, ...]] = {
        arm: tuple(Start((window,), 1.5) for window in windows) if one_at_a_time else (Start(tuple(windows), 1.5),)
        for arm, windows in zip(ARMS, (base, candidate), strict=True)
    }
    return Round(starts, AT, one_at_a_time=one_at_a_time)


def with_windows(measured: Round, change: Callable[[Arm, Window], Window]) -> Round:
    """The round with every window changed."""
    starts = {
        arm: tuple(replace(start, windows=tuple(change(arm, each) for each in start.windows)) for start in starts)
        for arm, starts in measured.starts.items()
    }
    return replace(measured, starts=starts)


def with_starts(measured: Round, base: Sequence[float | None], candidate: Sequence[float | None]) -> Round:
    """The round with servers that took so long to start, each as often; the first start has the windows."""

    def started(arm: Arm, seconds: Sequence[float | None]) -> tuple[Start, ...]:
        return tuple(Start(measured.windows(arm) if not number else (), each) for number, each in enumerate(seconds))

    return replace(measured, starts={"base": started("base", base), "candidate": started("candidate", candidate)})


def cases(names: str, table: Mapping[str, tuple[object, ...]]) -> pytest.MarkDecorator:
    """Run a test with each row of a table, under its name."""
    return pytest.mark.parametrize(names, table.values(), ids=table)
