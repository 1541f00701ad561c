"""Work, ceilings, and the share of a ceiling that a throughput is."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.roofline import Peak, Work, ceiling_per_second, peak_of, share_of_peak

flops = st.floats(min_value=1.0, max_value=1e18)
rates = st.floats(min_value=1e6, max_value=1e18)


def peak(flops_per_second: float) -> Peak:
    """Of a card that nobody makes."""
    return Peak(
        product="a card",
        precision="fp16",
        flops_per_second=flops_per_second,
        source="its data sheet",
    )


def test_a_published_share() -> None:
    """293 ConvNeXt-tiny images a second are 32 % of a T4 in fp32, where MACs taken for FLOPs would say 16 %."""
    t4 = peak_of("Tesla T4", "fp32")
    assert ceiling_per_second(Work(flops=8.909e9), t4) == pytest.approx(909.2, abs=0.05)
    assert share_of_peak(293, Work.of_macs(4.4548e9), t4) == pytest.approx(0.322, abs=5e-4)
    assert share_of_peak(293, Work(flops=4.4548e9), t4) == pytest.approx(0.161, abs=5e-4)


@given(flops)
def test_a_multiply_add_is_two_operations(count: float) -> None:
    """MACs and FLOPs are told apart by name, and one is twice the other."""
    assert Work(flops=count).macs == count / 2
    assert Work.of_macs(count) == Work(flops=2 * count)
    assert Work.of_macs(count).macs == count


@pytest.mark.parametrize("count", [0, -1, math.nan, math.inf, "8", None])
def test_work_is_above_nothing(count: Any) -> None:  # noqa: ANN401 -- that is the point
    """No operations would be an endless ceiling; and what a number counts has to be said."""
    with pytest.raises(UsageProblem, match="above 0"):
        Work(flops=count)
    with pytest.raises(TypeError):
        Work(8.909e9)  # type: ignore[call-arg]


@given(flops, rates, st.floats(min_value=0, max_value=0.999))
def test_a_share_is_that_of_the_ceiling(count: float, rate: float, share: float) -> None:
    """A throughput of a share of the ceiling has that share; exactly 1 is the end of the range, not beyond it."""
    work, card = Work(flops=count), peak(rate)
    assert share_of_peak(share * ceiling_per_second(work, card), work, card) == pytest.approx(share)
    assert share_of_peak(100.0, Work(flops=1e6), peak(1e8)) == 1.0


@given(flops, rates, st.floats(min_value=1.001, max_value=1e6))
def test_a_share_above_one_is_an_error(count: float, rate: float, share: float) -> None:
    """No card does more than its peak: the work or the precision is wrong, and no number comes back."""
    work, card = Work(flops=count), peak(rate)
    with pytest.raises(UsageProblem, match="a card can do in fp16") as problem:
        share_of_peak(share * ceiling_per_second(work, card), work, card)
    assert problem.value.looked == ("its data sheet",)
    assert any("precision" in remedy for remedy in problem.value.remedies)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf, "8.1e12", True])
def test_what_is_no_rate_is_no_peak(rate: Any) -> None:  # noqa: ANN401 -- that is the point
    """A card of one's own is given by numbers above 0, or refused."""
    with pytest.raises(UsageProblem, match="flops_per_second"):
        peak(rate)


@pytest.mark.parametrize(
    ("throughput", "work", "said"),
    [
        (-1.0, Work(flops=1e9), "no throughput"),
        (math.nan, Work(flops=1e9), "no throughput"),
        (1.0, 8.909e9, "not what a request costs"),
        (1.0, None, "not what a request costs"),
    ],
)
def test_an_unknown_is_no_share(throughput: float, work: Any, said: str) -> None:  # noqa: ANN401 -- that is the point
    """Nor does a number say whether it means multiply-adds or operations."""
    with pytest.raises(UsageProblem, match=said):
        share_of_peak(throughput, work, peak(1e12))
