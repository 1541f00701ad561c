"""A server's counts between two readings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.measure.counters import (
    Counters,
    ServerSetting,
    StageTime,
    WentBackwards,
    added,
    counted_between,
    differences,
    moved,
)
from pytest_gpuserve.measure.window import COMPUTE

COUNT = st.integers(0, 10**9)
TIMES = st.builds(StageTime, st.floats(0, 1e6), COUNT)
SIZES = st.dictionaries(st.sampled_from(["1", "4", "8"]), st.integers(1, 10**6), max_size=3)
PART = st.builds(
    Counters,
    items=COUNT,
    batches=st.integers(1, 10**9),
    batch_sizes=SIZES,
    stages=st.dictionaries(st.sampled_from([COMPUTE, "queue"]), TIMES),
    requests=st.none() | COUNT,
    tallies=st.dictionaries(st.sampled_from(["prompt_tokens", "preemptions"]), COUNT),
)
READING = st.builds(replace, PART, parts=st.dictionaries(st.sampled_from("ab"), PART))

EARLY = Counters(
    items=10,
    batches=4,
    batch_sizes={"1": 1, "4": 3},
    stages={COMPUTE: StageTime(1.0, 4)},
    requests=9,
    pending=7,
    parts={"model": Counters(items=10, batches=4)},
    tallies={"preemptions": 2},
)


@given(before=READING, meanwhile=READING)
def test_what_was_counted_meanwhile_is_found(before: Counters, meanwhile: Counters) -> None:
    """The difference of two readings is the growth in between; equal readings have an empty difference."""
    after = added([before, meanwhile])
    assert after is not None
    found = counted_between(before, after)
    sizes = dict(sorted(meanwhile.batch_sizes.items()))
    assert (found.items, found.batches, found.batch_sizes) == (meanwhile.items, meanwhile.batches, sizes)
    assert {name: count for name, count in found.tallies.items() if count or name in meanwhile.tallies} == dict(
        sorted(meanwhile.tallies.items())
    )
    assert found.requests == (meanwhile.requests if before.requests is not None else None)
    for name, time in meanwhile.stages.items():
        if time.count:
            assert found.stages[name].count == time.count
            assert found.stages[name].seconds == pytest.approx(time.seconds, rel=1e-6, abs=1e-6)
    parts = {name: part.items for name, part in meanwhile.parts.items()}
    assert {name: part.items for name, part in found.parts.items()} == parts
    nothing = counted_between(before, before)
    assert (nothing.items, nothing.batches) == (0, 0)
    assert (dict(nothing.batch_sizes), dict(nothing.stages), dict(nothing.parts)) == ({}, {}, {})


@pytest.mark.parametrize(
    ("late", "named"),
    [
        (replace(EARLY, items=9), "items fell from 10 to 9"),
        (replace(EARLY, requests=8), "requests fell from 9 to 8"),
        (replace(EARLY, tallies={}), "preemptions fell from 2 to 0"),
        (replace(EARLY, batch_sizes={"1": 1}), "batches of 4 fell from 3 to 0"),
        (replace(EARLY, stages={}), "count of compute fell from 4 to 0"),
        (replace(EARLY, stages={COMPUTE: StageTime(0.5, 4)}), "seconds of compute fell from 1.0 to 0.5"),
        (replace(EARLY, items=20, batches=9, parts={"model": Counters(items=12, batches=1)}), "model: batches fell"),
    ],
)
def test_a_counter_that_was_reset_is_named(late: Counters, named: str) -> None:
    """Any counter that is smaller than before says that something was started anew, also where others rose."""
    with pytest.raises(WentBackwards, match=named):
        counted_between(EARLY, late)


def test_what_was_not_told_at_one_end_is_not_known() -> None:
    """A number of requests that is missing in the first reading is unknown."""
    for before, after in ((None, 9), (9, None), (None, None)):
        assert counted_between(replace(EARLY, requests=before), replace(EARLY, requests=after)).requests is None
    # How many wait goes up and down, and is no reset.
    assert counted_between(EARLY, replace(EARLY, pending=2)).pending == 2


def test_only_known_differences_of_settings_are_told() -> None:
    """A setting without a requested or reported value does not differ, and has not moved."""
    known = {"same": ("8", "8"), "wait": ("10", "50"), "free": ("4", None), "silent": (None, "4")}
    found = differences({name: ServerSetting(*values) for name, values in known.items()})
    assert found == ["wait: asked for 50, the server uses 10"]
    before, now = (
        {name: ServerSetting(value) for name, value in each.items()}
        for each in (
            {"limit": "32", "wait": "10", "silent": None, "gone": "1"},
            {"limit": "16", "wait": "10", "silent": "3", "new": "2"},
        )
    )
    assert moved(before, now) == ["setting limit: 32 before, 16 now"]
