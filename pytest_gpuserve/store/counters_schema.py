"""What a file holds of a server's counters and settings, which rounds of an earlier run tell like new ones."""

from __future__ import annotations

import msgspec

from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.measure.settings import Setting
from pytest_gpuserve.measure.window import StageTime
from pytest_gpuserve.store.fields import Count, NotNegative  # noqa: TC001 -- msgspec reads the annotations


class StageRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A ``StageTime``."""

    seconds: NotNegative
    count: Count


class CountersRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``Counters`` of a stretch of time; what is under way has no place in them."""

    items: Count
    batches: Count
    batch_sizes: dict[str, Count] = {}
    stages: dict[str, StageRecord] = {}
    requests: Count | None = None
    parts: dict[str, CountersRecord] = {}


class SettingRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A ``Setting``."""

    used: str | None
    asked: str | None


def counters_record(counters: Counters | None) -> CountersRecord | None:
    """Turn counters into their record."""
    if counters is None:
        return None
    parts = {name: counters_record(part) for name, part in counters.parts.items()}
    return CountersRecord(
        items=counters.items,
        batches=counters.batches,
        batch_sizes=dict(counters.batch_sizes),
        stages={name: StageRecord(time.seconds, time.count) for name, time in counters.stages.items()},
        requests=counters.requests,
        parts={name: part for name, part in parts.items() if part is not None},
    )


def counters_of(record: CountersRecord | None) -> Counters | None:
    """Read counters back."""
    if record is None:
        return None
    parts = {name: counters_of(part) for name, part in record.parts.items()}
    return Counters(
        items=record.items,
        batches=record.batches,
        batch_sizes=record.batch_sizes,
        stages={name: StageTime(time.seconds, time.count) for name, time in record.stages.items()},
        requests=record.requests,
        parts={name: part for name, part in parts.items() if part is not None},
    )


def settings_record(settings: dict[str, Setting]) -> dict[str, SettingRecord]:
    """Turn settings into their record."""
    return {name: SettingRecord(setting.used, setting.asked) for name, setting in settings.items()}


def settings_of(record: dict[str, SettingRecord]) -> dict[str, Setting]:
    """Read settings back."""
    return {name: Setting(setting.used, setting.asked) for name, setting in record.items()}
