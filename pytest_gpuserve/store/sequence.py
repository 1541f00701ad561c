"""What is kept of one paired comparison: which pair it is of, its rounds, its looks; and the two files that hold it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Annotated, Final, TypeVar

import msgspec

from pytest_gpuserve.measure.counters import Counters, ServerSetting
from pytest_gpuserve.measure.histogram import Histogram
from pytest_gpuserve.measure.rounds import Arm, ArmResult, Block, Round
from pytest_gpuserve.measure.window import Client, Window
from pytest_gpuserve.store.checksummed import HistoryUnusable, encode, with_checksum
from pytest_gpuserve.store.schema import (
    Count,
    CountersRecord,
    Moment,
    NotNegative,
    Positive,
    SettingRecord,
    WindowRecord,
    converted,
    window_of,
    window_record,
)
from pytest_gpuserve.verdict.sequential import LOOKS
from pytest_gpuserve.verdict.verdict import Verdict  # noqa: TC001 -- msgspec reads the annotations

HISTOGRAMS = ("lag", "service")
"""Fields of a ``Client`` that are histograms."""


class ClientRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ``Client``; histograms as ``Histogram.to_text`` writes them."""

    lag: str
    service: str
    ceiling: Positive | None
    sending_seconds: NotNegative | None = None
    receiving_seconds: NotNegative | None = None
    resent: Count = 0


class ArmResultRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ``ArmResult``."""

    cold_start_seconds: tuple[NotNegative | None, ...]
    client: ClientRecord
    batch_sizes: dict[str, Count]
    answers: Count
    answers_checked: Count
    cold_start_parts: dict[str, NotNegative] = {}
    settings: dict[str, SettingRecord] = {}
    counters: CountersRecord | None = None


class BlockRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ``Block``."""

    order: tuple[Arm, ...]
    windows: tuple[WindowRecord, ...]


class RoundRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ``Round`` without problems: only such are kept."""

    blocks: tuple[BlockRecord, ...]
    first: Arm
    sides: dict[Arm, ArmResultRecord]
    at: Moment
    by_turns: bool
    together: bool
    rejected: Count
    foreign_cores: NotNegative
    problems: Annotated[tuple[str, ...], msgspec.Meta(max_length=0)] = ()


def round_record(measured: Round) -> RoundRecord:
    """Turn a round into its record."""
    return RoundRecord(
        blocks=tuple(BlockRecord(block.order, tuple(map(window_record, block.windows))) for block in measured.blocks),
        first=measured.first,
        sides={arm: _side_record(side) for arm, side in measured.sides.items()},
        at=measured.at,
        by_turns=measured.by_turns,
        together=measured.together,
        rejected=measured.rejected,
        foreign_cores=measured.foreign_cores,
        problems=tuple(map(str, measured.problems)),
    )


def round_of(record: RoundRecord, path: str) -> Round:
    """Read a round back.

    Raises:
        ValueError: A histogram or a block does not fit its windows; the text begins with ``path`` and the field.
    """
    return Round(
        blocks=tuple(_block_of(block, f"{path}.blocks[{number}]") for number, block in enumerate(record.blocks)),
        first=record.first,
        sides={arm: _side_of(side, f"{path}.sides.{arm}") for arm, side in record.sides.items()},
        at=record.at,
        by_turns=record.by_turns,
        together=record.together,
        rejected=record.rejected,
        foreign_cores=record.foreign_cores,
    )


def _side_record(side: ArmResult) -> ArmResultRecord:
    client = {each.name: getattr(side.client, each.name) for each in fields(Client)}
    return ArmResultRecord(
        cold_start_seconds=side.cold_start_seconds,
        client=ClientRecord(**{**client, **{name: client[name].to_text() for name in HISTOGRAMS}}),
        batch_sizes=dict(side.batch_sizes),
        answers=side.answers,
        answers_checked=side.answers_checked,
        cold_start_parts=dict(side.cold_start_parts),
        settings=converted(side.settings, dict[str, SettingRecord]),
        counters=None if side.counters is None else converted(side.counters, CountersRecord),
    )


def _side_of(record: ArmResultRecord, path: str) -> ArmResult:
    client = msgspec.structs.asdict(record.client)
    for name in HISTOGRAMS:
        try:
            client[name] = Histogram.from_text(client[name])
        except ValueError as problem:
            raise ValueError(f"{path}.client.{name}: {problem}") from None
    return ArmResult(
        record.cold_start_seconds,
        Client(**client),
        record.batch_sizes,
        record.answers,
        record.answers_checked,
        cold_start_parts=record.cold_start_parts,
        settings=converted(record.settings, dict[str, ServerSetting]),
        counters=None if record.counters is None else converted(record.counters, Counters),
    )


def _block_of(record: BlockRecord, path: str) -> Block:
    windows = tuple(_any_window_of(window, f"{path}.windows[{n}]") for n, window in enumerate(record.windows))
    try:
        return Block(record.order, windows)
    except ValueError as problem:
        raise ValueError(f"{path}: {problem}") from None


def _any_window_of(record: WindowRecord, path: str) -> Window:
    # The baselines' reader refuses failed requests, and is right where it stands.
    return replace(window_of(msgspec.structs.replace(record, errors={}), path), errors=record.errors)


_Kept = TypeVar("_Kept", bound="RoundsFile | PastFile")

ROUNDS_SCHEMA: Final = 4
"""Of the file of rounds."""

PAST_SCHEMA: Final = 1
"""Of the file of differences."""

Difference = Annotated[float, msgspec.Meta(gt=-1e3, lt=1e3)]
"""A difference of log cost, candidate minus base."""


@dataclass(frozen=True)
class Subject:
    """What is compared, and where: what a prior may be learned across.

    Args:
        label: Which of the test's loads.
        host: Pseudonym of the machine.
        device: With what must match of it.
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
        looks: The looks that were taken, by their places, in order, each once.
        decision: Its verdict, where a look decided it.
        differences: For each round its block differences of log cost, from which priors are learned.

    Raises:
        ValueError: Looks do not rise, or a round has no difference.
    """

    tolerance: Positive
    looks: tuple[Annotated[int, msgspec.Meta(ge=0, lt=len(LOOKS))], ...] = ()
    decision: Verdict | None = None
    differences: tuple[tuple[Difference, ...], ...] = ()

    def __post_init__(self) -> None:
        taken = list(self.looks)
        if taken != sorted(set(taken)):
            raise ValueError(f"looks are taken in order and once each, not {taken}")
        if not all(self.differences):
            raise ValueError("a round without any block difference is no round")


@dataclass(frozen=True)
class KeptSequence:
    """A paired comparison as far as it has come, its rounds oldest first.

    Args:
        began: When its first round began, ISO 8601 in UTC.
        added: When it was last saved; set by `History.save`, None before.
    """

    rounds: tuple[Round, ...] = field(repr=False)
    metrics: dict[str, KeptMetric]
    began: str
    added: str | None = None


class _KeptFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: SequenceKey
    added: Moment

    def __post_init__(self) -> None:
        # The pattern of a moment lets the 39th of a month through.
        datetime.fromisoformat(self.added)


class RoundsFile(_KeptFile, frozen=True, forbid_unknown_fields=True):
    """A sequence with all its rounds."""

    began: Moment
    metrics: dict[str, KeptMetric]
    rounds: tuple[RoundRecord, ...]


class PastFile(_KeptFile, frozen=True, forbid_unknown_fields=True):
    """What a prior is learned from, and no more: a prior need not read whole rounds."""

    differences: dict[str, tuple[tuple[Difference, ...], ...]]


def sequence_of(file: RoundsFile) -> KeptSequence:
    """Read a sequence back. Raises ValueError, which begins with the field's path."""
    rounds = tuple(round_of(record, f"rounds[{number}]") for number, record in enumerate(file.rounds))
    return KeptSequence(rounds, file.metrics, file.began, file.added)


def checked_bytes(key: SequenceKey, sequence: KeptSequence, added: str) -> tuple[bytes, bytes]:
    """The bytes of the file of rounds and of that of differences, which are sure to be read back as what they are of.

    Raises:
        HistoryUnusable: They would not be; nothing was written.
    """
    try:
        records = tuple(map(round_record, sequence.rounds))
        rounds = _read_back(RoundsFile(key, added, sequence.began, dict(sequence.metrics), records))
        sequence_of(rounds)
        differences = {name: metric.differences for name, metric in sequence.metrics.items()}
        past = _read_back(PastFile(key, added, differences))
    except (msgspec.MsgspecError, ValueError, TypeError, ArithmeticError) as problem:
        raise HistoryUnusable(
            f"this comparison of {key.subject.nodeid} is not remembered: it could not be read again",
            found=str(problem),
            remedies=["a re-run begins anew; this is a mistake of pytest-gpuserve, please report it"],
        ) from None
    return with_checksum(encode(rounds), schema=ROUNDS_SCHEMA), with_checksum(encode(past), schema=PAST_SCHEMA)


def _read_back(file: _Kept) -> _Kept:
    # What comes back is written, not what went in: there a whole number may stand in the place of a fraction.
    back = msgspec.json.decode(encode(file), type=type(file))
    if back != file:
        raise ValueError("something in it is not a number, or has no place in a file")
    return back


def _digest(value: Subject | SequenceKey) -> str:
    return hashlib.sha256(json.dumps(asdict(value), sort_keys=True).encode()).hexdigest()
