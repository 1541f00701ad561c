"""Types of callable fixtures: their arguments, for people, annotations and the program; heavy imports wait."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal

    from pytest_gpuserve.compare.assertions import Duel, Run
    from pytest_gpuserve.compare.comparison import TestComparison
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.telemetry import TelemetrySource
    from pytest_gpuserve.load.driver import EngineSource
    from pytest_gpuserve.load.schedule import Objectives, Schedule
    from pytest_gpuserve.measure.window import Window


class Load:
    """Type of the ``load`` fixture.

    Args:
        comparison: The comparisons of the test, which ``load`` and ``duel`` share.
        telemetry: Samples the GPU while servers are loaded.
        engine: Source of the load engines.
    """

    def __init__(self, comparison: TestComparison, telemetry: TelemetrySource, engine: EngineSource) -> None:
        self._comparison = comparison
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
        """Load a server and return the measurement.

        If the load is measured alone, each session has ``starts`` fresh starts of the server, because starts of one
        build differ. Side by side with another build, the load has up to eight rounds within the budget, until every
        comparison is decided.

        Args:
            target: The requests: ``server.post(...)``, or several in rotation: ``server.rotate([...])``.
            concurrency: Number of users. Each sends the next request after the answer to the last one.
            schedule: Instead of ``concurrency``, a schedule of ``pytest_gpuserve.load``, such as ``Poisson(rate=200)``.
            seconds: Measured time of a start: 4 by default, at least 2. Unsteady or too few answers lengthen it, up
                to threefold. Side by side, ``8`` doubles a window's length, ``12`` triples it.
            requests: A start ends after this many answers. If they take longer than 15 times ``seconds`` (60 s by
                default), the run is INVALID.
            until: A start ends when this function returns true for its windows so far, of 0.5 s each. The first call
                gets four. The time limit is that of ``requests``.
            warmup_seconds: Loaded time before the measurement. Its answers do not count.
            starts: Fresh starts of a session, at least two. ``starts``, ``requests`` and ``until`` have no effect side
                by side.
            timeout: Seconds after which a request is an error.
            processes: Number of load engines that share the load, if one is too slow.
            seed: Seed of random arrivals and shuffled requests.
            check: ``all`` compares every answer with ``expect=``, ``some`` compares a sample.
            allowed_errors: Share of the requests that may fail, such as ``0.001``.
            goodput: Objectives that an answer must meet to count for ``run.goodput``: ``Objectives(ttft=0.2,
                tpot=0.03)`` of ``pytest_gpuserve.load``, in seconds.
            name: Name of this load in its baseline, if the test has several loads.

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
        return self._comparison.measure(replace(target, telemetry_source=self._telemetry), shape, name)


class MakeDuel:
    """Type of the ``duel`` fixture; made as ``Load`` is."""

    def __init__(self, comparison: TestComparison, telemetry: TelemetrySource, engine: EngineSource) -> None:
        self._comparison = comparison
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
        """Load two servers side by side, over fresh starts of both.

        The metrics of the result are ratios: the first server's value divided by the second's. The assertion
        ``duel.throughput >= 1.05`` passes if the data prove that the first server answers at least 5 % more requests
        per second. It fails if they prove the contrary. If they prove neither, the verdict is INCONCLUSIVE.

        Arguments not listed here mean the same as for ``load``.

        Args:
            target: The requests to the first server: ``one.post(...)``.
            opponent: The requests to the second server.
            seconds: 4 by default. ``8`` doubles a window's length, and ``12`` triples it.
            name: Name of this load in reports.

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
        target, opponent = (replace(each, telemetry_source=self._telemetry) for each in (target, opponent))
        return self._comparison.duel(target, opponent, shape, name)
