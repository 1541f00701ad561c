"""What one comparison remembers of earlier tries: its own rounds, and those of other pairs as a prior."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.paired import RoundPoint
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.store.checksummed import HistoryUnusable
from pytest_gpuserve.store.sequence import KeptMetric, KeptSequence, SequenceKey
from pytest_gpuserve.units import utc_now

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.measure.rounds import Round
    from pytest_gpuserve.store.history import History


KEPT_IN_RUN: Final = Reason(
    ReasonKind.KEPT, "decided by an earlier try in this run, and kept: a retry goes on where it ended"
)


class Memory:
    """The sequence of one pair, from one try of a test to the next, and from one run of pytest to the next.

    Args:
        history: Where it is kept; None to forget it with this run.
        key: Which pair it is; None where a build cannot be told from another, so that nothing outlasts this run.
        note: Hears what could not be read or kept, a line each.

    Attributes:
        rounds: Of earlier tries of this pair.
        metrics: What they came to, by the metric's name.
        remark: When that was, and how to forget it, for a verdict that stems from it; None where no run before has any.
        round_seconds: How long the last round took in this run; 0 where none was taken.
    """

    def __init__(self, history: History | None, key: SequenceKey | None, note: Callable[[str], None]) -> None:
        self._history = history
        self._key = key
        self._note = note
        self.rounds: Sequence[Round] = ()
        self.metrics: Mapping[str, KeptMetric] = {}
        self._began = utc_now()
        self.remark: Reason | None = None
        self.round_seconds = 0.0
        kept = self._load()
        if kept is not None:
            self.rounds, self.metrics, self._began = kept.rounds, kept.metrics, kept.began
            text = (
                f"decided at {kept.added} of this very pair of builds, and kept: a re-run goes on where the last one"
                " ended; `--cache-clear` forgets it"
            )
            self.remark = Reason(ReasonKind.KEPT, text)

    def aside(self) -> Memory:
        """Make a copy of what is known, of which nothing is kept."""
        made = Memory(None, None, self._note)
        made.rounds, made.metrics = self.rounds, self.metrics
        return made

    def save(self, rounds: Sequence[Round], metrics: Mapping[str, KeptMetric]) -> None:
        """Remember how far it has come."""
        self.rounds, self.metrics = tuple(rounds), dict(metrics)
        if self._history is None or self._key is None:
            return
        try:
            self._history.save(self._key, KeptSequence(tuple(rounds), dict(metrics), self._began))
        except HistoryUnusable as problem:
            self._note(problem.line)

    def past(self) -> Mapping[str, list[list[RoundPoint]]]:
        """Of each metric, the rounds of other pairs under the same load on this device and host."""
        if self._history is None or self._key is None:
            return {}
        found = self._history.past_rounds(self._key.subject, excluding=self._key)
        for line in found.notes:
            self._note(line)
        past: dict[str, list[list[RoundPoint]]] = {}
        for comparison in found.comparisons:
            for name, rounds in comparison.differences.items():
                past.setdefault(name, []).append([RoundPoint(differences) for differences in rounds])
        return past

    def _load(self) -> KeptSequence | None:
        if self._history is None or self._key is None:
            return None
        try:
            return self._history.load(self._key)
        except HistoryUnusable as problem:
            self._note(f"{problem.line}; so this comparison begins anew")
            return None
