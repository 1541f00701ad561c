"""Records of what was measured, and what was measured from records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.measure.counters import ServerSetting, StageTime
from pytest_gpuserve.measure.window import GpuUse, Session, Start
from pytest_gpuserve.store.schema import SessionRecord, WindowRecord, session_of, window_of, window_record
from tests.store.strategies import COUNT, SECONDS, windows
from tests.support.builders import OCCASION, here, session, start, window

STARTS = st.builds(
    Start,
    windows=st.lists(windows(), min_size=1, max_size=3).map(tuple),
    cold_start_seconds=SECONDS | st.none(),
    discarded=st.integers(0, 100),
    foreign_cores=SECONDS,
)


@settings(max_examples=50)
@given(
    starts=st.lists(STARTS, min_size=2, max_size=3),
    answers=COUNT,
    sizes=st.dictionaries(st.text(), COUNT),
    used=st.dictionaries(st.text(), st.builds(ServerSetting, st.text())),
)
def test_a_session_is_read_back_as_it_was(
    starts: list[Start], answers: int, sizes: dict[str, int], used: dict[str, ServerSetting]
) -> None:
    """Through a record and JSON nothing changes but the seventh digit of a time."""
    starts = [replace(one, settings=used) for one in starts]
    measured = Session(tuple(starts), "2025-01-02T03:04:05+00:00", (), sizes, answers, answers)
    text = msgspec.json.encode(here().session_record(measured))
    assert session_of(msgspec.json.decode(text, type=SessionRecord)) == measured


def test_a_record_names_no_machine() -> None:
    """Where it was measured is said by facts and a pseudonym alone, when by its run's begin beside its own."""
    record = here("0123456789ab").session_record(session(start(window(seconds=0.50123456789)), start()))
    assert msgspec.to_builtins(record.host) == {
        "id": "0123456789ab",
        "cpu": "A CPU",
        "cores": 2,
        "memory_gib": 4.0,
        "system": "Debian 12",
        "kernel": "6.1",
    }
    unknown = ("product", "memory_gib", "driver", "cuda", "power_limit_watts")
    assert msgspec.to_builtins(record.device) == {"name": "cpu", **dict.fromkeys(unknown)}
    assert (record.occasion, record.at) == (OCCASION, "2025-01-02T03:04:05+00:00")
    # A diff shows 0.501235 s, not sixteen digits of a clock.
    assert record.starts[0].windows[0].seconds == 0.501235


def test_an_error_that_did_not_occur_is_none() -> None:
    """A window with a count of zero may be part of a baseline."""
    fine = window(errors={"timeout": 0})
    assert session_of(here().session_record(session(start(fine), start()))).windows[0].errors == {"timeout": 0}


def test_a_window_without_stages_gpus_or_streams_is_written_as_ever() -> None:
    """Files of before keep every letter and are read; what is known stands in one line, to six digits."""
    plain = msgspec.to_builtins(window_record(window()))
    of_streams = {"ttft", "itl", "tpot", "tokens", "with_usage", "good", "unjudged", "tallies"}
    assert plain.keys().isdisjoint({"stages", "cards", *of_streams})
    assert msgspec.convert(plain, WindowRecord) == window_record(window())
    counted = replace(window(), stages={"server": StageTime(0.123456789, 320), "compute": StageTime(0.25, 40)})
    assert msgspec.to_builtins(window_record(counted)) == {**plain, "stages": "compute=0.25/40 server=0.123457/320"}
    tallied = window_record(replace(window(), tallies={"prompt_tokens": 200, "cached_tokens": 0}))
    assert msgspec.to_builtins(tallied) == {**plain, "tallies": "cached_tokens=0 prompt_tokens=200"}
    gpus = GpuUse(joules=12.5, memory_bytes=1.2e9, utilisation=0.8, sm_clock_mhz=1350.0)
    record = window_record(replace(window(), gpus=gpus))
    text = "joules=12.5 memory=1.2e+09 utilisation=0.8 sm_clock=1350"
    assert msgspec.to_builtins(record) == {**plain, "cards": text}
    assert window_record(replace(window(), gpus=GpuUse(utilisation=2 / 3))).cards == "utilisation=0.666667"
    assert window_of(window_record(replace(window(), gpus=GpuUse())), "").gpus is None


STAGES = [
    *["compute", "compute=1", "compute=/4", "compute=-1/4", "compute=inf/4", "compute=1e999/4"],
    *["compute=1.2.3/4", "compute=1.0/4", "compute=1/0", "compute=1/-4"],
    *["compute=1/4  x=1/4", "x=1/4 x=1/4", "b=1/4 a=1/4", " x=1/4"],
]
GPUS = [
    *["joules", "joules=", "joules=-1", "joules=inf", "joules=1e999", "joules=1.0", "joules=1 joules=1"],
    *["memory=1 joules=1", "joules=1  memory=1", " joules=1", "watts=1", "memory_bytes=1"],
]


@pytest.mark.parametrize(
    ("field", "changes", "words"),
    [
        *(("stages: ", {"stages": text}, "") for text in STAGES),
        *(("cards: ", {"cards": text}, "") for text in GPUS),
        *(("tallies: ", {"tallies": text}, "") for text in ["a", "a=-1", "a=1.5", "b=1 a=1", "a=01", "a=1 a=1"]),
        ("latency", {"requests": 11}, " holds 10 latencies, .* is 11$"),
        ("errors", {"errors": {"timeout": 1}}, ""),
        ("itl: ", {"itl": "5+1"}, ""),
        ("ttft", {"ttft": "5+3"}, " holds 3 times, .* is 10$"),
        ("tpot", {"ttft": "5+10", "tpot": "5+4", "with_usage": 3}, ""),
        ("tpot", {"ttft": "5+10", "with_usage": 11}, ""),
        ("good", {"good": 9, "unjudged": 2}, ""),
    ],
)
def test_a_damaged_window_is_refused(field: str, changes: dict[str, Any], words: str) -> None:
    """Stages and GPUs that are not exactly as they would be written, and what does not fit, are named by the field."""
    record = here().session_record(session())
    record.starts[1].windows[2] = msgspec.structs.replace(record.starts[1].windows[2], **changes)
    with pytest.raises(ValueError, match=rf"^starts\[1\]\.windows\[2\]\.{field}.*{words}"):
        session_of(record)
