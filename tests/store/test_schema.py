"""Records of what was measured, and what was measured from records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime
from pytest_gpuserve.measure.points import NotMeasured, value_of_starts
from pytest_gpuserve.measure.window import GpuUse, Start, Window
from pytest_gpuserve.store.schema import StartRecord, sessions_of, start_of, start_record
from pytest_gpuserve.verdict.metric import METRICS, Metric
from tests.support.builders import entry, session, start, streamed, window

OF_GPUS = replace(window(), gpus=GpuUse(joules=12.5, memory_bytes=1.2e9, utilisation=0.8, sm_clock_mhz=1350.0))
SLOWER = window((0.01, 0.02, 0.03), seconds=0.7)


@pytest.mark.parametrize(
    "windows",
    [
        (window(), SLOWER),
        (OF_GPUS, replace(OF_GPUS, seconds=1.0, gpus=GpuUse(3.0, 1.3e9, 0.1, 900.0))),
        (OF_GPUS, SLOWER),
        (streamed(window(), good=3), streamed(SLOWER, ttft=0.01, tpot=0.002, tokens=5, good=2)),
        (streamed(window(), usage=False), streamed(SLOWER)),
        (window(), window((), items=None, batches=None)),
    ],
)
def test_a_start_has_the_numbers_that_it_was_measured_with(windows: tuple[Window, ...]) -> None:
    """Every metric equals that of all windows together, to six digits; a second write changes nothing."""

    def value(metric: Metric, start: Start) -> float:
        try:
            return value_of_starts(metric, [start])
        except NotMeasured:
            return -1.0

    measured = start(*windows)
    record = msgspec.json.decode(msgspec.json.encode(start_record(measured)), type=StartRecord)
    back = start_of(record, {}, "")
    for metric in METRICS.values():
        assert value(metric, back) == pytest.approx(value(metric, measured), rel=1e-5), metric.name
    assert start_record(back) == record


def test_how_a_server_was_set_up_is_read_back() -> None:
    """Each start has the settings of its server."""
    (read,) = sessions_of(msgspec.structs.replace(entry(), settings={"max_batch": "8"}))
    assert [start.settings for start in read.starts] == [{"max_batch": ServerSetting("8")}] * 2


def test_what_is_not_known_is_left_out() -> None:
    """A plain start is short; what is known has its name and unit, to six digits."""
    plain = msgspec.to_builtins(start_record(start(window(seconds=0.50123456789, items=None, batches=None))))
    assert plain == {
        "cold_start_seconds": 1.5,
        "client_cpu_seconds": 0.01,
        "latency": "0.1 0.01 16126+10",
        "requests": 10,
        "seconds": 0.501235,
    }
    more = replace(
        window(items=None, batches=None, seconds=0.50123456789),
        counters=Counters(
            0, 0, stages={"compute": StageTime(0.123456789, 40)}, counts_batches=False, tallies={"prompt_tokens": 200}
        ),
        gpus=GpuUse(joules=12.5),
    )
    assert msgspec.to_builtins(start_record(start(more))) == {
        **plain,
        "stages": {"compute": (0.123457, 40)},
        "gpus": {"joules": 12.5},
        "tallies": {"prompt_tokens": 200},
    }


@pytest.mark.parametrize(
    ("field", "changes", "words"),
    [
        ("gpus", {"gpus": {"watts": 1.0}}, "joules"),
        ("latency", {"requests": 11}, " holds 10 latencies, .* is 11$"),
        ("latency: ", {"latency": "5+10"}, "SUM MAX"),
        ("itl: ", {"itl": "5+1"}, ""),
        ("ttft", {"ttft": "1 1 5+3"}, " holds 3 times, .* is 10$"),
        ("tpot", {"tpot": "1 1 5+4", "with_usage": 3}, ""),
        ("tpot", {"with_usage": 11}, ""),
        ("good", {"good": 9, "unjudged": 2}, ""),
    ],
)
def test_a_damaged_start_is_refused(field: str, changes: dict[str, Any], words: str) -> None:
    """A field that cannot be read or does not fit is named."""
    made = entry(session(start(streamed(window())), start(streamed(window()))))
    made.sessions[0].starts[1] = msgspec.structs.replace(made.sessions[0].starts[1], **changes)
    with pytest.raises(ValueError, match=rf"^sessions\[0\]\.starts\[1\]\.{field}.*{words}"):
        sessions_of(made)
