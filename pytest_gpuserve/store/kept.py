"""Rounds that are kept between tries and runs, so that a re-run continues instead of trying its luck again.

One folder holds one JSON file for each pair of builds and test, ``SUBJECT-PAIR.json``: its rounds, and for each metric
its tolerance, looks and decision. The levels of earlier looks stay spent. Both names are hashes; the file contains the
full texts. Concurrent runs may lose each other's rounds (the last writer's file stays), but never mix them. The folder
may be removed at any time, which only forgets the rounds.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from pytest_gpuserve.measure.rounds import Round  # noqa: TC001 -- msgspec reads the annotations
from pytest_gpuserve.store import write_whole
from pytest_gpuserve.store.schema import Positive  # noqa: TC001 -- as above
from pytest_gpuserve.units import utc_now
from pytest_gpuserve.verdict.evidence import LOOKS, RoundPoint
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.verdict import Verdict  # noqa: TC001 -- msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pytest_gpuserve.verdict.verdict import Judgement

DAYS: Final = 30
"""Age up to which a file is used: longer than the repair of a pull request takes, shorter than a machine stays the
same."""

MOST_FILES: Final = 20
"""Number of pairs of one test that are kept: enough for the 20 degrees of freedom at which a learned prior is
capped."""


@dataclass(frozen=True)
class Subject:
    """A workload on a device: rounds of one can teach the prior of another.

    Args:
        label: Label of the load within its test.
        host: Pseudonym of the machine.
        device: The device with the facts that must match.
        workload: The texts that must be equal.
    """

    nodeid: str
    label: str
    host: str
    device: str
    workload: dict[str, str]


@dataclass(frozen=True)
class Pair:
    """A pair of builds on one subject; rounds belong together only if all fields are equal.

    Args:
        base: Identity of the base: the hash of its code and its interpreter.
        candidate: The hash of the candidate's content, uncommitted changes included.
        software: Versions that both use.
    """

    subject: Subject
    base: str
    candidate: str
    software: dict[str, str]


@dataclass(frozen=True)
class KeptMetric:
    """A metric of a pair.

    Args:
        tolerance: The tolerance of the comparison.
        looks: Taken looks, as indices of `LOOKS`, in order.
        decision: Its verdict, if the last look decided it.
        differences: Block differences of log cost of each round, from which priors are learned.

    Raises:
        ValueError: Looks do not rise, a decision has no look, or a round has no difference.
    """

    tolerance: Positive
    looks: tuple[Annotated[int, msgspec.Meta(ge=0, lt=len(LOOKS))], ...] = ()
    decision: Verdict | None = None
    differences: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if list(self.looks) != sorted(set(self.looks)):
            raise ValueError(f"looks must be in order, each once, not {self.looks}")
        if self.decision is not None and not self.looks:
            raise ValueError("a decision without a look")
        for differences in self.differences:
            RoundPoint(differences)


@dataclass(frozen=True)
class KeptRounds:
    """The rounds of a pair so far, oldest first.

    Args:
        at: Time of the last save, ISO 8601 in UTC.

    Raises:
        ValueError: A look rests on more rounds than are kept, or a round has problems: only sound ones are kept.
    """

    pair: Pair
    at: str
    metrics: dict[str, KeptMetric]
    rounds: tuple[Round, ...]
    schema: Literal[8] = 8

    def __post_init__(self) -> None:
        if any(LOOKS[look][0] > len(self.rounds) for metric in self.metrics.values() for look in metric.looks):
            raise ValueError("a look rests on more rounds than are kept")
        if any(measured.problems for measured in self.rounds):
            raise ValueError("a round with problems is not kept")


class _Past(msgspec.Struct):
    # Fields for a prior: the rounds, nearly all of a file, are skipped.
    pair: Pair
    metrics: dict[str, KeptMetric]


class KeptFolder:
    """The folder of kept rounds, made at the first save.

    Args:
        folder: Path of the folder.
        note: Called with each file that could not be read or written, a line each.
        now: Seconds since the epoch, by the clock of the files.
    """

    def __init__(self, folder: Path, note: Callable[[str], None], *, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._note = note
        self._now = now

    def load(self, pair: Pair) -> KeptRounds | None:
        """The kept rounds of a pair; None without any.

        A file that cannot be decoded is put aside, with a note, so that the comparison begins anew.
        """
        path = self._path(pair)
        try:
            if self._is_old(path):
                return None
            kept = msgspec.json.decode(path.read_bytes(), type=KeptRounds)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, RecursionError) as problem:
            self._put_aside(path, str(problem))
            return None
        if kept.pair == pair:
            return kept
        self._put_aside(path, "the file belongs to another comparison")
        return None

    def _put_aside(self, path: Path, found: str) -> None:
        aside = path.with_suffix(".damaged")
        with suppress(OSError):
            path.replace(aside)
        self._note(f"{path} cannot be used ({found}) and is now {aside.name}, so this comparison begins anew")

    def save(self, pair: Pair, rounds: Sequence[Round], metrics: Mapping[str, KeptMetric]) -> None:
        """Keep the present rounds of a pair, and remove old and surplus files.

        A folder that cannot be written is noted; the run goes on, but the next one begins anew.
        """
        path = self._path(pair)
        try:
            write_whole(path, msgspec.json.encode(KeptRounds(pair, utc_now(), dict(metrics), tuple(rounds))))
            for other in self._folder.glob("*-*"):
                if self._is_old(other):
                    other.unlink(missing_ok=True)
            same = sorted(self._of(pair.subject), key=lambda other: (other == path, other.stat().st_mtime))
            for other in same[:-MOST_FILES]:
                other.unlink(missing_ok=True)
        except OSError as problem:
            self._note(f"a re-run begins anew, because {self._folder} cannot be written ({problem}); make it writable")

    def forget(self, pair: Pair) -> None:
        """Remove the rounds of a pair."""
        with suppress(OSError):
            self._path(pair).unlink(missing_ok=True)

    def past(self, pair: Pair) -> dict[str, list[list[RoundPoint]]]:
        """For each metric, the rounds of other pairs of the same subject, from which its prior is learned.

        The pair itself is left out: its rounds are its evidence and cannot be its prior too.
        """
        found: dict[str, list[list[RoundPoint]]] = {}
        for path in self._of(pair.subject):
            # A file that cannot be decoded is ignored; `load` notes it if it matters.
            with suppress(OSError, msgspec.MsgspecError, RecursionError):
                past = msgspec.json.decode(path.read_bytes(), type=_Past)
                if past.pair != pair and past.pair.subject == pair.subject and not self._is_old(path):
                    for name, metric in past.metrics.items():
                        found.setdefault(name, []).append([RoundPoint(each) for each in metric.differences])
        return found

    def _path(self, pair: Pair) -> Path:
        return self._folder / f"{_digest(pair.subject)}-{_digest(pair)}.json"

    def _of(self, subject: Subject) -> list[Path]:
        return sorted(self._folder.glob(f"{_digest(subject)}-*.json"))

    def _is_old(self, path: Path) -> bool:
        """Whether a file is too old to be used. Raises OSError."""
        return self._now() - path.stat().st_mtime > 86_400 * DAYS


KEPT_IN_RUN: Final = Reason(ReasonKind.KEPT, "decided by an earlier try of this test in this run")


class Memory:
    """State of a comparison: of one pair, from one try of a test to the next, and from one run of pytest to the next.

    Args:
        folder: Folder of the rounds; None to forget them with this run.
        pair: The pair; None if a build cannot be identified, so that rounds end with this run.

    Attributes:
        rounds: Sound rounds so far.
        metrics: Their results, by the metric's name.
        remark: Remark on a verdict from an earlier try or run; empty without one.
        round_seconds: Duration of the last round in this run; 0 without one.
        late: Shutdown problems that discarded a round in this try.
        limits: Ratios that were shown in this try to hold a limit or to miss it.
    """

    def __init__(self, folder: KeptFolder | None, pair: Pair | None) -> None:
        self._folder = folder
        self._pair = pair
        self.rounds: Sequence[Round] = ()
        self.metrics: Mapping[str, KeptMetric] = {}
        self.remark: tuple[Reason, ...] = ()
        self.round_seconds = 0.0
        self.late: tuple[Reason, ...] = ()
        self.limits: dict[tuple[str, float], Judgement] = {}
        kept = None if folder is None or pair is None else folder.load(pair)
        if kept is not None:
            self.rounds, self.metrics = kept.rounds, kept.metrics
            text = f"decided by an earlier run of the same two builds, at {kept.at}; `--cache-clear` forgets that run"
            self.remark = (Reason(ReasonKind.KEPT, text),)

    def begin_try(self) -> None:
        """Forget the problems and ratios of an earlier try in this run; its rounds stay."""
        self.late, self.limits = (), {}
        if self.rounds and not self.remark:
            self.remark = (KEPT_IN_RUN,)

    def save(self, rounds: Sequence[Round], metrics: Mapping[str, KeptMetric]) -> None:
        """Store the present state."""
        self.rounds, self.metrics = tuple(rounds), dict(metrics)
        if self._folder is not None and self._pair is not None:
            self._folder.save(self._pair, rounds, metrics)

    def forget(self) -> None:
        """Remove the rounds of this pair from the folder: another run does not go on with them."""
        if self._folder is not None and self._pair is not None:
            self._folder.forget(self._pair)

    def past(self) -> Mapping[str, list[list[RoundPoint]]]:
        """Rounds of other pairs under the same load on this device and host, for each metric."""
        return {} if self._folder is None or self._pair is None else self._folder.past(self._pair)


def _digest(value: Subject | Pair) -> str:
    return hashlib.sha256(json.dumps(asdict(value), sort_keys=True).encode()).hexdigest()[:32]
