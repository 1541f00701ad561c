"""Fixtures that tests call: their arguments, for people, for annotations and for the program; heavy imports wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal

    from pytest_gpuserve.compare.assertions import Duel, Run
    from pytest_gpuserve.compare.judging import TestGate
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.telemetry import TelemetrySource
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.source import EngineSource
    from pytest_gpuserve.measure.objectives import Objectives
    from pytest_gpuserve.measure.window import Window


class Load:
    """What the ``load`` fixture is.

    Args:
        gate: Of the test, which ``load`` and ``duel`` share.
        telemetry: Looks at the GPU while servers are loaded.
        engine: Where the load engines come from.
    """

    def __init__(self, gate: TestGate, telemetry: TelemetrySource, engine: EngineSource) -> None:
        self._gate = gate
        self._telemetry = telemetry
        self._engine = engine

    def __call__(
        self,
        target: Target,
        *,
        concurrency: int | None = None,
        schedule: Schedule | None = None,
        seconds: float | None = None,
        requests: int | None = None,
        until: Callable[[Sequence[Window]], object] | None = None,
        warmup_seconds: float = 1.0,
        starts: int = 2,
        timeout: float = 10.0,
        processes: int = 1,
        seed: int = 0,
        check: Literal["all", "some"] = "some",
        allowed_errors: float = 0.0,
        goodput: Objectives | None = None,
        name: str | None = None,
    ) -> Run:
        """Load a server and return what was measured.

        The server is started ``starts`` times, because starts of one build differ; each is warmed up and then
        measured. A comparison of the run with ``baseline`` that is not decided yet measures more.

        Args:
            target: What is sent, where: ``server.post(...)``, or several by turns: ``server.rotate([...])``.
            concurrency: Users, each of which sends its next request when its last one was answered.
            schedule: Instead of ``concurrency``, one of ``pytest_gpuserve.load``: ``Closed``, ``Steps``, ``Constant``,
                ``Poisson``, ``Gamma``, ``Trace`` or ``Burst``. Latencies of an open loop count from when requests
                were due. ``Steps``, ``Trace`` and ``Burst`` end by themselves and are measured as a whole.
            seconds: Measured time of a start, 4 by default and 2 at least; it is lengthened up to three times where a
                quantile or slow answers need it.
            requests: A start ends after so many instead, within 15 times ``seconds``.
            until: A start ends when this returns true for its finished windows (of half a second, four at least)
                instead, within 15 times ``seconds``.
            warmup_seconds: Loaded time before it that is thrown away.
            starts: Fresh starts of one look, two at least.
            timeout: Seconds after which a request is an error.
            processes: Load engines that share the schedule, where one cannot keep up; with ``--load-engine`` workers.
            seed: Of random arrivals and shuffled requests.
            check: Whether ``all`` answers are compared with what is expected, or ``some``: as many as disturb nothing.
            allowed_errors: Share of the requests that may fail.
            goodput: What each answer has to meet to count for ``run.goodput``: ``Objectives(ttft=200 * ms,
                tpot=30 * ms)`` of ``pytest_gpuserve.load``.
            name: Tells this load apart from others of the same test, in its baseline.

        Raises:
            UsageProblem: An argument is out of range.
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
            BaselineUnusable: The baseline file cannot be read or trusted.
        """
        from pytest_gpuserve.experiment.shape import LoadShape, schedule_of  # noqa: PLC0415 -- heavy

        shape = LoadShape(
            schedule=schedule_of(concurrency, schedule),
            seconds=seconds,
            requests=requests,
            until=until,
            warmup_seconds=warmup_seconds,
            starts=starts,
            timeout_seconds=timeout,
            processes=processes,
            seed=seed,
            check=check,
            allowed_errors=allowed_errors,
            goodput=goodput,
            source=self._engine,
        )
        return self._gate.measure(target.watched_by(self._telemetry), shape, name)


class MakeDuel:
    """What the ``duel`` fixture is; made as ``Load`` is."""

    def __init__(self, gate: TestGate, telemetry: TelemetrySource, engine: EngineSource) -> None:
        self._gate = gate
        self._telemetry = telemetry
        self._engine = engine

    def __call__(
        self,
        target: Target,
        opponent: Target,
        *,
        concurrency: int | None = None,
        schedule: Schedule | None = None,
        seconds: float | None = None,
        warmup_seconds: float = 1.0,
        timeout: float = 10.0,
        processes: int = 1,
        seed: int = 0,
        check: Literal["all", "some"] = "some",
        allowed_errors: float = 0.0,
        goodput: Objectives | None = None,
        name: str | None = None,
    ) -> Duel:
        """Load two servers side by side, in blocks by turns over fresh starts of both.

        The result's metrics are ratios, the first server's value to the second's: ``assert duel.throughput >= 1.05``
        holds if the data show that the first does at least 5 % more. It measures until that is decided.

        Args:
            target: What is sent to the first server: ``one.post(...)``.
            opponent: What is sent to the second.
            concurrency: As for ``load``, the same for both.
            schedule: As for ``load``, the same for both.
            seconds: Of which an eighth is the length of a window, half a second at least.
            warmup_seconds: As for ``load``.
            timeout: As for ``load``.
            processes: As for ``load``.
            seed: As for ``load``.
            check: As for ``load``.
            allowed_errors: As for ``load``.
            goodput: As for ``load``.
            name: As for ``load``.

        Raises:
            UsageProblem: An argument is out of range.
            ServerFailed: A server could not be started.
            LoadFailed: The load engine failed.
        """
        from pytest_gpuserve.experiment.shape import LoadShape, schedule_of  # noqa: PLC0415 -- heavy

        shape = LoadShape(
            schedule=schedule_of(concurrency, schedule),
            seconds=seconds,
            warmup_seconds=warmup_seconds,
            timeout_seconds=timeout,
            processes=processes,
            seed=seed,
            check=check,
            allowed_errors=allowed_errors,
            goodput=goodput,
            source=self._engine,
        )
        return self._gate.duel(target.watched_by(self._telemetry), opponent, shape, name)
