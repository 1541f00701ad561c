"""What is kept of one paired comparison: which pair it is of, its rounds, its looks; and the two files that hold it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

# msgspec reads the annotations of what it decodes.
from pytest_gpuserve.gate.sequential import Seen  # noqa: TC001
from pytest_gpuserve.gate.verdict import Verdict  # noqa: TC001
from pytest_gpuserve.store.fields import Moment, Positive  # noqa: TC001
from pytest_gpuserve.store.round_schema import RoundRecord, round_of, round_record
from pytest_gpuserve.store.sealed import HistoryUnusable, encode, seal

if TYPE_CHECKING:
    from pytest_gpuserve.measure.rounds import Round

ROUNDS_SCHEMA: Final = 2
"""Of the file of rounds: in schema 1 a tolerance was a growth of the cost, so that its looks asked other questions."""

PAST_SCHEMA: Final = 1
"""Of the file of differences."""

Difference = Annotated[float, msgspec.Meta(gt=-1e3, lt=1e3)]
"""A difference of log cost, candidate minus base."""


@dataclass(frozen=True)
class Subject:
    """What is compared, and where: what a prior may be learned across.

    Args:
        nodeid: The test.
        label: Which of the test's loads.
        host: Pseudonym of the machine.
        device: The device, with what must match of it.
        workload: What a run must have in common with another.
    """

    nodeid: str
    label: str
    host: str
    device: str
    workload: dict[str, str]

    def digest(self) -> str:
        """Sixteen hexadecimal digits that name it."""
        return _digest(self)[:16]


@dataclass(frozen=True)
class SequenceKey:
    """One pair of builds on one subject; rounds belong together only if all of it is equal.

    Args:
        subject: What is compared, and where.
        base: What identifies the base: the hash of its code and its interpreter.
        candidate: The hash of the candidate's content, uncommitted changes included.
        software: Versions that both run with.
    """

    subject: Subject
    base: str
    candidate: str
    software: dict[str, str]

    def digest(self) -> str:
        """Thirty-two hexadecimal digits that name the pair; no two pairs share them."""
        return _digest(self)[:32]


class KeptMetric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One metric of a sequence.

    Args:
        tolerance: That it was asked at, in the metric's own unit.
        looks: The looks that were taken, in order, each once.
        decision: Its verdict, where a look decided it.
        differences: For each round its block differences of log cost, from which priors are learned.

    Raises:
        ValueError: Looks do not rise, or a round has no difference.
    """

    tolerance: Positive
    looks: tuple[Seen, ...] = ()
    decision: Verdict | None = None
    differences: tuple[tuple[Difference, ...], ...] = ()

    def __post_init__(self) -> None:
        taken = [seen.look for seen in self.looks]
        if taken != sorted(set(taken)):
            raise ValueError(f"looks are taken in order and once each, not {taken}")
        if not all(self.differences):
            raise ValueError("a round without any block difference is no round")


@dataclass(frozen=True)
class KeptSequence:
    """A paired comparison as far as it has come.

    Args:
        rounds: Measured so far, oldest first.
        metrics: What is known of each metric, by its name.
        began: When its first round began, ISO 8601 in UTC.
        added: When it was last saved, likewise; `History.save` says it, None before.
    """

    rounds: tuple[Round, ...] = field(repr=False)
    metrics: dict[str, KeptMetric]
    began: str
    added: str | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: SequenceKey
    added: Moment

    def __post_init__(self) -> None:
        # The pattern of a moment lets the 39th of a month through.
        datetime.fromisoformat(self.added)


class RoundsFile(_File, frozen=True, forbid_unknown_fields=True):
    """A sequence with all its rounds."""

    began: Moment
    metrics: dict[str, KeptMetric]
    rounds: tuple[RoundRecord, ...]


class PastFile(_File, frozen=True, forbid_unknown_fields=True):
    """What a prior is learned from, and no more: a prior need not read whole rounds."""

    differences: dict[str, tuple[tuple[Difference, ...], ...]]


def rounds_file(key: SequenceKey, sequence: KeptSequence, added: str) -> RoundsFile:
    """What goes into the larger file."""
    records = tuple(map(round_record, sequence.rounds))
    return RoundsFile(key, added, sequence.began, dict(sequence.metrics), records)


def past_file(key: SequenceKey, sequence: KeptSequence, added: str) -> PastFile:
    """What goes into the smaller file."""
    return PastFile(key, added, {name: metric.differences for name, metric in sequence.metrics.items()})


def sequence_of(file: RoundsFile) -> KeptSequence:
    """Read a sequence back.

    Raises:
        ValueError: A round cannot be read; the text begins with the field's path.
    """
    rounds = tuple(round_of(record, f"rounds[{number}]") for number, record in enumerate(file.rounds))
    return KeptSequence(rounds, file.metrics, file.began, file.added)


def checked_bytes(file: RoundsFile | PastFile) -> bytes:
    """The bytes of a file that is sure to be read back as what it was made of.

    Raises:
        HistoryUnusable: It would not be; nothing was written.
    """
    try:
        back = msgspec.json.decode(encode(file), type=type(file))
        if isinstance(back, RoundsFile):
            sequence_of(back)
        wrong = "" if back == file else "something in it is not a number, or has no place in a file"
    except (msgspec.MsgspecError, ValueError, TypeError, ArithmeticError) as problem:
        wrong = str(problem)
    if wrong:
        raise HistoryUnusable(
            f"this comparison of {file.key.subject.nodeid} is not remembered: it could not be read again",
            found=wrong,
            remedies=["a re-run begins anew; this is a mistake of pytest-gpuserve, please report it"],
        )
    # What came back, not what went in: there a whole number may stand in the place of a fraction.
    return seal(encode(back), schema=ROUNDS_SCHEMA if isinstance(back, RoundsFile) else PAST_SCHEMA)


def _digest(value: Subject | SequenceKey) -> str:
    return hashlib.sha256(json.dumps(asdict(value), sort_keys=True).encode()).hexdigest()
