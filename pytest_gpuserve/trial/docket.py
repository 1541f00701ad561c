"""The loads of one test: what was measured of each, what it took, and whose servers may run now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuserve.gate.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.measure.rounds import Round
    from pytest_gpuserve.trial.assertions import Run
    from pytest_gpuserve.trial.measurement import Measurement


class Docket:
    """The loads of one test, which measure one after the other.

    Args:
        always_paired: Whether each of them is measured beside a base.

    Attributes:
        measurements: Those that the test asked for, in that order.
        confirmations: Those of them that were measured once more beside an anchor's commit.
        duels: Runs that are one server's against another's.
    """

    def __init__(self, *, always_paired: bool) -> None:
        self.measurements: list[Measurement] = []
        self.confirmations: list[Measurement] = []
        self.duels: list[Run] = []
        self._always_paired = always_paired

    @property
    def all(self) -> list[Measurement]:
        """The loads, and those that were measured once more."""
        return [*self.measurements, *self.confirmations]

    @property
    def reported(self) -> list[Measurement]:
        """The loads of which reports tell: these, and what was measured to settle what baselines say of them."""
        return [*self.measurements, *(each for each in self.confirmations if each.judgements)]

    def of(self, run: Run) -> Measurement:
        """The load that the test holds as this run."""
        return next(measurement for measurement in self.measurements if measurement.run is run)

    def is_duel(self, run: Run) -> bool:
        """Whether a run is one server's against another's."""
        return any(run is one for one in self.duels)

    def spent_seconds(self) -> float:
        """What the test has measured so far."""
        return sum(measurement.all_seconds for measurement in self.all)

    def rest_others(self, measurement: Measurement) -> None:
        """End the servers of all other loads, before more of one is measured."""
        for other in self.all:
            if other is not measurement:
                self._rest(other)

    def rest_all(self) -> None:
        """End the servers that a comparison side by side has left running for its next look."""
        for measurement in self.all:
            self._rest(measurement)

    def _rest(self, measurement: Measurement) -> None:
        if measurement.paired is not None:
            measurement.paired.rest()
        if self.rounds_of(measurement):
            # Some trouble shows only at the servers' end.
            measurement.show()

    def rounds_of(self, measurement: Measurement) -> Sequence[Round]:
        """The rounds that are the run; none where it was measured alone, whatever had to confirm it."""
        beside = (
            self._always_paired
            or measurement.is_paired
            or measurement.settles is not None
            or self.is_duel(measurement.run)
        )
        return measurement.paired.rounds if beside and measurement.paired is not None else ()

    def unjudged_problems(self) -> list[str]:
        """Problems of runs of which no comparison has spoken.

        Of a run that Ctrl-C cut short nobody has to be told: the test has no outcome.
        """
        return [
            problem
            for measurement in self.all
            if not measurement.interrupted
            and not any(
                judgement.verdict is Verdict.INVALID and judgement.asserted
                for judgement in measurement.judgements.values()
            )
            for problem in dict.fromkeys(
                (*measurement.run.problems, *(measurement.paired.problems if measurement.paired is not None else ()))
            )
        ]
