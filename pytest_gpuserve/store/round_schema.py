"""What a file holds of a round: every window with its histograms, so that any later statistic can be computed from it.

Unlike in a baseline, failed requests stay in their windows: a test may allow some, and its rounds count.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from pytest_gpuserve.measure.histogram import Histogram
from pytest_gpuserve.measure.rounds import Arm, Block, Round, Side
from pytest_gpuserve.measure.window import Client, Window
from pytest_gpuserve.store.counters_schema import (
    CountersRecord,
    SettingRecord,
    counters_of,
    counters_record,
    settings_of,
    settings_record,
)
from pytest_gpuserve.store.fields import Count, Moment, NotNegative, Positive  # noqa: TC001 -- msgspec reads them
from pytest_gpuserve.store.search_schema import SearchRecord, search_of, search_record
from pytest_gpuserve.store.window_schema import WindowRecord, window_of, window_record

HISTOGRAMS = ("lag", "service", "first_token", "between_tokens")
"""Fields of a ``Client`` that are histograms."""


class ClientRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ``Client``; histograms as ``Histogram.to_text`` writes them."""

    lag: str
    service: str
    first_token: str
    between_tokens: str
    tokens: Count
    seconds: NotNegative
    ceiling: Positive | None
    sending_seconds: NotNegative | None = None
    receiving_seconds: NotNegative | None = None


class SideRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ``Side``."""

    cold_start_seconds: tuple[NotNegative | None, ...]
    client: ClientRecord
    batch_sizes: dict[str, Count]
    answers: Count
    answers_checked: Count
    cold_start_parts: dict[str, NotNegative] = {}
    settings: dict[str, SettingRecord] = {}
    counters: CountersRecord | None = None
    searches: tuple[SearchRecord, ...] = ()


class BlockRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ``Block``."""

    order: tuple[Arm, ...]
    windows: tuple[WindowRecord, ...]


class RoundRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ``Round``."""

    blocks: tuple[BlockRecord, ...]
    first: Arm
    sides: dict[Arm, SideRecord]
    at: Moment
    by_turns: bool
    rejected: Count
    foreign_cores: NotNegative
    problems: tuple[str, ...]


def round_record(measured: Round) -> RoundRecord:
    """Turn a round into its record."""
    return RoundRecord(
        blocks=tuple(BlockRecord(block.order, tuple(map(window_record, block.windows))) for block in measured.blocks),
        first=measured.first,
        sides={arm: _side_record(side) for arm, side in measured.sides.items()},
        at=measured.at,
        by_turns=measured.by_turns,
        rejected=measured.rejected,
        foreign_cores=measured.foreign_cores,
        problems=measured.problems,
    )


def round_of(record: RoundRecord, path: str) -> Round:
    """Read a round back.

    Args:
        record: The round's record.
        path: Where it stands, for the error.

    Raises:
        ValueError: A histogram cannot be read or does not fit its window, or a block has not its windows; the text
            begins with the field's path.
    """
    return Round(
        blocks=tuple(_block_of(block, f"{path}.blocks[{number}]") for number, block in enumerate(record.blocks)),
        first=record.first,
        sides={arm: _side_of(side, f"{path}.sides.{arm}") for arm, side in record.sides.items()},
        at=record.at,
        by_turns=record.by_turns,
        rejected=record.rejected,
        foreign_cores=record.foreign_cores,
        problems=record.problems,
    )


def _side_record(side: Side) -> SideRecord:
    client = side.client
    return SideRecord(
        cold_start_seconds=side.cold_start_seconds,
        client=ClientRecord(
            lag=client.lag.to_text(),
            service=client.service.to_text(),
            first_token=client.first_token.to_text(),
            between_tokens=client.between_tokens.to_text(),
            tokens=client.tokens,
            seconds=client.seconds,
            ceiling=client.ceiling,
            sending_seconds=client.sending_seconds,
            receiving_seconds=client.receiving_seconds,
        ),
        batch_sizes=dict(side.batch_sizes),
        answers=side.answers,
        answers_checked=side.answers_checked,
        cold_start_parts=dict(side.cold_start_parts),
        settings=settings_record(dict(side.settings)),
        counters=counters_record(side.counters),
        searches=tuple(record for record in map(search_record, side.searches) if record is not None),
    )


def _side_of(record: SideRecord, path: str) -> Side:
    found = {}
    for name in HISTOGRAMS:
        try:
            found[name] = Histogram.from_text(getattr(record.client, name))
        except ValueError as problem:
            raise ValueError(f"{path}.client.{name}: {problem}") from None
    client = Client(
        lag=found["lag"],
        service=found["service"],
        first_token=found["first_token"],
        between_tokens=found["between_tokens"],
        tokens=record.client.tokens,
        seconds=record.client.seconds,
        ceiling=record.client.ceiling,
        sending_seconds=record.client.sending_seconds,
        receiving_seconds=record.client.receiving_seconds,
    )
    return Side(
        record.cold_start_seconds,
        client,
        record.batch_sizes,
        record.answers,
        record.answers_checked,
        cold_start_parts=record.cold_start_parts,
        settings=settings_of(record.settings),
        counters=counters_of(record.counters),
        searches=tuple(
            search
            for number, each in enumerate(record.searches)
            if (search := search_of(each, f"{path}.searches[{number}]")) is not None
        ),
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
