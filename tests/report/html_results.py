"""Rich results of many tests, as a run on a GPU has them, for the tests of reports."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime
from pytest_gpuserve.measure.histogram import Histogram, bucket_of
from pytest_gpuserve.measure.window import COMPUTE, PER_REQUEST, QUEUE, SERVER, GpuUse, Session, Start, Window
from pytest_gpuserve.report.results import LogTail, RunResult, SessionResult, TestResult
from pytest_gpuserve.verdict.reason import ReasonKind
from pytest_gpuserve.verdict.verdict import Judgement, ReferenceKind, Verdict
from tests.support.builders import COMMIT, because, judgement, window
from tests.support.builders import OCCASION as AT

if TYPE_CHECKING:
    from collections.abc import Iterable

REQUESTS: Final = 800
"""In a window."""

USERS: Final = (1, 2, 4, 8, 16, 32, 64, 128)

VERDICTS: Final = (
    Verdict.REGRESSED,
    Verdict.MISSING,
    Verdict.PASS,
    Verdict.INCONCLUSIVE,
    Verdict.IMPROVED,
    Verdict.INVALID,
)


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
        },
        host={"id": "host-a", "cpu": "A CPU", "cores": 16, "memory_gib": 128.0, "numa_nodes": None},
        tests=tuple(result_of_test(number, side_by_side=not stored) for number in range(tests)),
        notes=("recorded 2 new baselines",),
        places=("baselines: /project/baselines/A100-SXM4-80GB", "server logs: /tmp/gpuserve-logs"),
        header="A100-SXM4-80GB (NVIDIA A100-SXM4-80GB), gating against baselines/A100-SXM4-80GB",
        at=AT,
        commit=COMMIT,
        clean=True,
        software={"python": "3.11.9", "mosec": "0.9.5"},
        stored=stored,
    )


def result_of_test(number: int, *, side_by_side: bool) -> TestResult:
    """A test of a session: the loads of eight neighbours differ by their users."""
    users = USERS[number % len(USERS)]
    kind: ReferenceKind = "against" if side_by_side else "baseline"
    special = judgement_of(VERDICTS[number % len(VERDICTS)], kind, number)
    passing = (
        replace(
            judgement(Verdict.PASS, name, kind=kind), value=value, reference=value, change=0.0, interval=(-0.02, 0.02)
        )
        for name, value in (("latency.p50", 0.0051), ("batching_ratio", 15.8))
    )
    judgements = (special, *passing)
    failed = not special.verdict.passes
    return TestResult(
        f"suites/part_{number // 8}/test_serving.py::test_load_{number // 8}[{users}-float16]",
        "failed" if failed else "passed",
        [
            RunResult(
                "",
                (session(users, 1 + (number % 3) / 2),),
                judgements,
                {"load": "closed loop", "concurrency": str(users), "method": "POST", "path": "/inference"},
                {"server": "mosec", "app": "app.py", "app_sha256": "ab" * 32},
                base="HEAD~1" if side_by_side else None,
                base_sessions=(session(users, 1.0),) if side_by_side else (),
            )
        ],
        "assert throughput >= baseline.throughput\nREGRESSED: throughput is 1432/s" if failed else "",
        tuple(LogTail(f"{number:03d}-mosec-{part}", "\n".join(_log_lines())) for part in range(2)),
    )


def _log_lines() -> Iterable[str]:
    return (f"{AT} INFO worker {line % 4}: batch of {line} in 4.1 ms" for line in range(40))


def judgement_of(verdict: Verdict, kind: ReferenceKind, number: int) -> Judgement:
    """A judgement of the throughput, each as large as it is of no other test."""
    reasons = {
        Verdict.MISSING: because("there is no baseline of this test: record one", kind=ReasonKind.NO_ENTRY),
        Verdict.INVALID: because("throttled: 3 of 8 windows, thermal slowdown", kind=ReasonKind.THROTTLED),
        Verdict.INCONCLUSIVE: because("the evidence suffices for a tolerance of 14 %", kind=ReasonKind.UNDECIDED),
    }.get(verdict, ())
    made = judgement(verdict, kind=kind, reasons=reasons)
    return made if made.change is None else replace(made, change=made.change - 0.003 * (number % 7), windows=32)


@cache
def session(users: int, slower: float) -> Session:
    """A session of two starts of a server on one GPU, whose slowest answers take so many times as long."""
    begins = (10**12, 2 * 10**12)
    return Session(
        tuple(_start(users, slower, begin_ns) for begin_ns in begins),
        AT,
    )


def _start(users: int, slower: float, begin_ns: int) -> Start:
    # Two windows were thrown away after the third.
    places = [0, 1, 2, 5, 6, 7, 8, 9]
    windows = [_window(users, slower, begin_ns + 500_000_000 * place, place) for place in places]
    return Start(
        tuple(windows),
        cold_start_seconds=3.2,
        discarded=1,
        foreign_cores=0.2,
        cpu_share=0.3,
        settings={
            "max_batch_size": ServerSetting("16", "32"),
            "timeout": ServerSetting("10 ms", "10 ms"),
            "num": ServerSetting(None),
        },
        rejected=("SM clock fell to 900 MHz: thermal slowdown",) * 2,
        answers=REQUESTS * 8,
        answers_checked=REQUESTS * 8,
    )


def _window(users: int, slower: float, begin_ns: int, place: int) -> Window:
    middle = 0.002 * (1 + users / 20) * (1 + 0.01 * (place % 5))
    latencies = [middle * 1.002**rank * (slower if rank > 0.98 * REQUESTS else 1) for rank in range(REQUESTS)]
    made = window(latencies, errors={"status 503": 1})
    return msgspec.structs.replace(
        made,
        counters=_counters(made.mean, REQUESTS),
        lag=Histogram({bucket_of(20_000): REQUESTS}),
        sending_ns=round(0.02 * made.mean * REQUESTS * 1e9),
        receiving_ns=round(0.01 * made.mean * REQUESTS * 1e9),
        gpus=GpuUse(120.0, 12e9, 0.83, 1410.0 - 30 * (place % 4)),
        begin_ns=begin_ns,
        end_ns=begin_ns + 500_000_000,
    )


def _counters(mean: float, requests: int) -> Counters:
    shares = {QUEUE: 0.45, f"{PER_REQUEST}input": 0.05, f"{PER_REQUEST}infer": 0.3, f"{PER_REQUEST}output": 0.04}
    stages = {name: StageTime(share * mean * requests, requests) for name, share in shares.items()}
    stages[SERVER] = StageTime(0.85 * mean * requests, requests)
    stages[COMPUTE] = StageTime(0.4 * mean * requests / 12, requests // 12)
    return Counters(requests, requests // 12, {"16": requests // 16}, stages, requests)


class Page(HTMLParser):
    """Parts of a page.

    Args:
        source: Its HTML.

    Attributes:
        elements: Tags with their attributes, in order.
        texts: Texts that a reader sees, without those of styles and plots.
        styles: The style sheets.
    """

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.styles: list[str] = []
        self._inside: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See ``HTMLParser``."""
        self.elements.append((tag, dict(attrs)))
        self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """See ``HTMLParser``."""
        self._inside.append("")

    def handle_data(self, data: str) -> None:
        """See ``HTMLParser``."""
        inside = self._inside[-1] if self._inside else ""
        if inside == "style":
            self.styles.append(data)
        elif inside != "text":
            self.texts.append(data)

    @property
    def text(self) -> str:
        """All that is to be read, its lines joined."""
        return " ".join(" ".join(self.texts).split())
