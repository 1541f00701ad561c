"""The DistilBERT suite's reading of uneven latencies, on the published histograms and on made ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import strategies as st

from suites.distilbert.modes import Mode, expected_modes, modes_of, without_tail

PUBLISHED = Path(__file__).parents[2] / "baselines" / "T4" / "published" / "distilbert.json"

histograms = st.lists(st.integers(0, 40_000), min_size=1, max_size=30).map(
    lambda counts: [(0.001 * (place + 1), count) for place, count in enumerate(counts)]
)


def published(system: str, concurrency: int, workers: int) -> tuple[list[tuple[float, int]], dict[str, float]]:
    """The printed histogram and values of one measurement."""
    wanted = {"system": system, "concurrency": concurrency, "workers": workers}
    entries = json.loads(PUBLISHED.read_text())["entries"]
    (entry,) = [entry for entry in entries if wanted.items() <= entry["keys"].items()]
    return [(edge, count) for edge, count in entry["histogram"]], entry["values"]


@pytest.mark.parametrize("concurrency", [50, 80])
def test_published_latencies_of_one_process_are_two_modes_as_arithmetic_has_it(concurrency: int) -> None:
    """Of 50 users in batches of 32, 14 of 32 wait one batch and 18 two; of 80 half wait two and half three.

    Batches of 32 and 18 by turns would be even, with one mode: a histogram says how large they were.
    """
    histogram, values = published("mosec", concurrency, 1)
    first, second = modes_of(histogram)
    (batches, share), (more, other_share) = expected_modes(concurrency, 32).items()
    assert first.share == pytest.approx(share, abs=0.02)
    assert second.share == pytest.approx(other_share, abs=0.02)
    # Their places have the same ratio, and a batch's time is that which the throughput says: 32 are answered in it.
    assert values["latency.p25"] / values["latency.p75"] == pytest.approx(batches / more, abs=0.03)
    assert values["latency.p25"] / batches * values["throughput"] == pytest.approx(32, rel=0.02)
    assert len(expected_modes(50, 25)) == 1


def test_published_latencies_of_the_others_are_one_mode() -> None:
    """A long shoulder is no mode of its own, and neither are two full bins side by side."""
    for system, concurrency, workers in (("pytriton", 50, 1), ("mosec", 80, 2)):
        histogram, _ = published(system, concurrency, workers)
        assert [mode.share for mode in modes_of(histogram)] == [1.0]


@pytest.mark.parametrize(
    ("counts", "modes"),
    [
        ([0, 0, 0], []),
        ([100], [Mode(1, 1.0)]),
        ([60, 10, 40], [Mode(1, 60 / 110), Mode(3, 50 / 110)]),
        ([60, 11, 40], [Mode(1, 1.0)]),
        ([40, 30, 60], [Mode(3, 1.0)]),
        ([50, 0, 50, 0, 50], [Mode(1, 1 / 3), Mode(3, 1 / 3), Mode(5, 1 / 3)]),
        ([95, 0, 5], [Mode(1, 1.0)]),
    ],
)
def test_modes_are_parted_by_deep_valleys(counts: list[int], modes: list[Mode]) -> None:
    """A valley of a quarter of the lower peak parts two modes, a shallower one does not; a small hump is none."""
    found = modes_of([(place + 1.0, count) for place, count in enumerate(counts)])
    assert [mode.seconds for mode in found] == [mode.seconds for mode in modes]
    assert [mode.share for mode in found] == pytest.approx([mode.share for mode in modes])


def test_slow_requests_do_not_hide_two_modes() -> None:
    """One request of a second puts all others into one of eleven bins; without the tail there are two modes again."""
    fine = [(0.0005 * (place + 1), 0) for place in range(2_200)]
    fine[28] = (fine[28][0], 4_400)
    fine[56] = (fine[56][0], 5_590)
    fine[2_199] = (fine[2_199][0], 10)
    coarse = without_tail(fine)
    assert [count for _, count in coarse if count] == [4_400, 5_590]
    assert len(coarse) == 11
    assert len(modes_of(coarse)) == 2
    eleven = [(fine[end - 1][0], sum(count for _, count in fine[end - 200 : end])) for end in range(200, 2_201, 200)]
    assert len(modes_of(eleven)) == 1
