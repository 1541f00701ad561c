"""How often a load was begun, by the times of its windows, and what is known of a stream."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuserve.experiment.observed import Observed
from pytest_gpuserve.measure.histogram import Histogram, bucket_of
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.window import Client, Session, Start
from tests.support.builders import window

SECOND = 10**9


@pytest.mark.parametrize(
    ("begins_ns", "loads"),
    [
        ([], 0),
        ([0, SECOND, 2 * SECOND], 1),
        # A tick's end is told to the nanosecond, that of several engines as their mean.
        ([0, SECOND + 1, 2 * SECOND - 1], 1),
        # The next turn of a load by turns, at once and after the other one's.
        ([0, SECOND + 10**7, 2 * SECOND + 10**7], 2),
        ([0, 3 * SECOND, 6 * SECOND], 3),
        # Windows whose times were not kept are loads of their own: as many as there may be.
        ([None, None], 2),
    ],
)
def test_a_load_is_counted_each_time_that_it_is_begun(begins_ns: list[int | None], loads: int) -> None:
    """Once in a start that was measured without a gap, else as often as there was one; over all starts."""
    windows = [
        window() if begin is None else replace(window(), begin_ns=begin, end_ns=begin + SECOND) for begin in begins_ns
    ]
    start = Start(tuple(windows), None)
    assert Observed([Session((start,), ""), Session((start, start), "")]).loads == 3 * loads


def observed(client: Client) -> Observed:
    """A load of one window, and what its client saw."""
    return Observed([Session((Start((window(),), None, client=client),), "")])


@pytest.mark.parametrize(("within", "known"), [(0, [50, 90, 99]), (20, [50, 90]), (100, [50]), (101, [])])
def test_gaps_within_one_read_blur_quantiles(within: int, known: list[int]) -> None:
    """A quantile is known while they are a fifth of what lies beyond it at most; one that is not says how many are."""
    gaps = Histogram({bucket_of(10**6): 1000 - within, **({0: within} if within else {})})
    found = observed(Client(between_tokens=gaps)).between_tokens
    for percent in (50, 90, 99):
        if percent in known:
            assert getattr(found, f"p{percent}") == pytest.approx(1e-3, rel=6e-4)
        else:
            share = rf"p{percent} of the gaps .*: {within / 10:g} % of them lie within one read"
            with pytest.raises(NotMeasured, match=share):
                getattr(found, f"p{percent}")
    with pytest.raises(NotMeasured, match="nothing was measured"):
        _ = observed(Client()).between_tokens.p50


def test_tokens_are_known_where_every_part_of_a_load_knows_them() -> None:
    """One start whose answers do not say how many they have makes chunks of all; one without any tokens does not."""
    known, chunks, none = Client(tokens=5, tokens_from_usage=True), Client(tokens=5), Client()
    assert Client.pooled([known, none, known]).tokens_from_usage
    assert not Client.pooled([known, chunks]).tokens_from_usage
    assert not Client.pooled([none]).tokens_from_usage
    assert Client.pooled([Client(resent=2), Client(resent=3)]).resent == 5
