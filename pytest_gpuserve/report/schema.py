"""The result file of ``--gpuserve-json``, schema 2.

Latencies are in seconds. ``change`` is a fraction of the value with the value's own sign. ``tolerance`` and
``detectable`` are such fractions for the worse, without a sign. Unknown values are null. A schema may only get
additions; any other change makes a new schema. Field order is the order in the file.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from pytest_gpuserve.verdict.verdict import ReferenceKind, Verdict  # noqa: TC001 -- msgspec reads the annotations

SCHEMA: Final = 2

Mode = Literal["gate", "against", "update", "update-new"]
"""Mode of a run: judge by stored baselines, judge beside another revision or interpreter, or record."""

Plain = dict[str, Any]
"""An object of JSON."""


class ReasonRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fields of a `Reason` for programs."""

    kind: str
    about: str = ""
    seconds: float | None = None


class VerdictRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A `Judgement` of a load.

    Args:
        metric: The metric's name.
        verdict: The outcome.
        value: The measured value, in `unit`.
        unit: Unit of `value` and `reference`.
        reference: The value that `change` refers to, in `unit`.
        reference_kind: ``baseline``, ``against``, ``duel`` or ``limit``.
        change: Change of the value, as a fraction with the value's own sign.
        interval: Both ends of the interval of `change`.
        tolerance: How much worse the value may be, as a fraction.
        detectable: If undecided, the smallest change for the worse that the run would have found, as a fraction.
        rounds: New sessions or paired rounds.
        reasons: Reasons of the verdict, as texts for people.
        why: The same reasons as values for programs.
        run: The label of the load.
        windows: Measured windows.
    """

    metric: str
    verdict: Verdict
    value: float | None
    unit: str = ""
    reference: float | None = None
    reference_kind: ReferenceKind
    change: float | None = None
    interval: tuple[float, float] | None = None
    tolerance: float | None
    detectable: float | None = None
    rounds: int = 0
    reasons: list[str] = []
    why: list[ReasonRecord] = []
    run: str = ""
    windows: int = 0


class BaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The base of a load.

    Args:
        name: Name for people.
        options: Options that measure beside it again.
        requests: Answered requests.
        seconds: Measured time.
        throughput: Requests per second.
        latency: Seconds, by ``mean``, ``p50``, ``p90``, ``p95``, ``p99`` and ``max``.
        batching_ratio: Items per batch.
    """

    name: str
    options: list[str] = []
    requests: int = 0
    seconds: float = 0.0
    throughput: float | None = None
    latency: dict[str, float | None] = {}
    batching_ratio: float | None = None


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A load of a test.

    Args:
        label: Name of the load if the test has several; empty for the first.
        requests: Answered requests.
        errors: Failed requests by kind.
        seconds: Measured time.
        throughput: Requests per second.
        latency: Seconds, by ``mean``, ``p50``, ``p90``, ``p95``, ``p99`` and ``max``.
        batching_ratio: Items per batch.
        batch_sizes: Number of executions of each batch size.
        breakdown: Time of an average request by component, in seconds.
        send_lag_p99: 99th percentile of the delay of sends.
        service: Quantiles of latencies from the actual send, in an open loop.
        ttft: Quantiles of the time to the first chunk with content of a stream, in seconds.
        itl: Quantiles of the gaps between such chunks; null if too many came in one read.
        tpot: Quantiles of the time for each token after the first.
        output_tokens_per_second: Tokens received per second; null if an answer does not report its tokens.
        goodput: Answers per second that met all objectives of the load.
        telemetry: Use of the GPU: ``joules``, the most ``memory_bytes``, the mean ``utilisation`` and ``sm_clock_mhz``.
        windows_measured_again: Reasons of repeated windows, one text each.
        sessions: Number of sessions.
        starts: Number of starts.
        cold_start_seconds: Cold start of each start.
        cold_start_parts: Parts of each cold start as the server reports them, in seconds.
        counters: The server's counters, in total and for each of its models or stages.
        answers: Answers received.
        answers_checked: Answers that were compared with the expected ones.
        foreign_cores: Cores that other processes took during each start.
        cpu_share: Share of the host's cores that were busy during each start.
        client_cpu_seconds: CPU time of the load engine.
        problems: Reasons why the measurement decides nothing.
        load: The load, as texts.
        server: The server, as texts.
        settings: Settings of the server: ``asked`` and ``used``.
        base: The base that was measured beside it.
    """

    label: str
    requests: int = 0
    errors: dict[str, int] = {}
    seconds: float = 0.0
    throughput: float | None
    latency: dict[str, float | None]
    batching_ratio: float | None
    batch_sizes: dict[str, int] = {}
    breakdown: Plain | None = None
    send_lag_p99: float | None = None
    service: Plain | None = None
    ttft: dict[str, float | None] | None = None
    itl: dict[str, float | None] | None = None
    tpot: dict[str, float | None] | None = None
    output_tokens_per_second: float | None = None
    goodput: float | None = None
    telemetry: Plain | None = None
    windows_measured_again: list[str] = []
    sessions: int = 0
    starts: int = 0
    cold_start_seconds: list[float | None] = []
    cold_start_parts: list[dict[str, float]] = []
    counters: Plain | None = None
    answers: int = 0
    answers_checked: int = 0
    foreign_cores: list[float | None] = []
    cpu_share: list[float | None] = []
    client_cpu_seconds: float = 0.0
    problems: list[str] = []
    load: dict[str, str] = {}
    server: dict[str, str] = {}
    settings: Plain = {}
    base: BaseRecord | None = None


class TestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A test that measured.

    Args:
        nodeid: Its id.
        outcome: pytest's outcome, or ``interrupted``.
        problem: Reason why it did not pass, in pytest's words.
        verdicts: One for each row of the table.
        run: Its first load, or null.
        more_runs: Its further loads; absent if there are none.
    """

    # Not a test class, although its name looks like one to pytest.
    __test__ = False

    nodeid: str
    outcome: str
    problem: str = ""
    verdicts: list[VerdictRecord]
    run: RunRecord | None
    more_runs: list[RunRecord] | msgspec.UnsetType = msgspec.UNSET

    @property
    def runs(self) -> list[RunRecord]:
        """All its loads."""
        return [*([] if self.run is None else [self.run]), *(self.more_runs or [])]


class ResultRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file.

    Args:
        schema: Number of the schema.
        at: When the run began, ISO 8601 in UTC.
        commit: The commit under test.
        clean: Whether the checkout was that commit, unchanged; null if unknown.
        software: Versions.
        gpu: Facts of the device.
        host: Facts of the host.
        mode: ``gate``, ``against``, ``update`` or ``update-new``.
        against: The base of the run; null if comparisons are with stored baselines.
        header: Device and base, in a line.
        notes: Notes, a line each.
        tests: The measuring tests, in the order of their runs.
    """

    schema: int = SCHEMA
    at: str | None = None
    commit: str | None = None
    clean: bool | None = None
    software: dict[str, str] = {}
    gpu: Plain
    host: Plain
    mode: Mode | None = None
    against: str | None = None
    header: str = ""
    notes: list[str] = []
    tests: list[TestRecord]
