"""Peak rates: what is in the table, how a card is found in it, what is refused, and the share that a run reached."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.roofline import PRECISIONS, Peak, Work, ceiling_per_second, peak_of, share_of_peak
from pytest_gpuserve.roofline.peak import FIRST_WITH_UNITS, PRODUCTS, Product

NAMES = [name for product in PRODUCTS for name in product.names]


def by_name(product: Product) -> str:
    """How a test case is called."""
    return product.names[0]


@pytest.mark.parametrize(
    ("product", "precision", "tflops"),
    [
        ("Tesla T4", "fp32", 8.1),
        ("Tesla T4", "fp16", 65),
        ("Tesla V100-SXM2-32GB", "fp16", 125),
        ("Tesla V100-PCIE-16GB", "fp16", 112),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA A100 80GB PCIe", "fp64", 19.5),
        ("NVIDIA L4", "fp8", 242.5),
        ("NVIDIA H100 PCIe", "fp16", 756.5),
        ("NVIDIA H100 NVL", "fp16", 835.5),
        ("NVIDIA H100 80GB HBM3", "fp16", 989.5),
        ("NVIDIA H200", "fp8", 1979),
    ],
)
def test_a_peak_is_that_of_the_data_sheet(product: str, precision: str, tflops: float) -> None:
    """A product's dense rate is found by NVML's name of it, in operations a second, with where it is written."""
    peak = peak_of(product, precision)
    assert (peak.flops_per_second, peak.product, peak.precision) == (tflops * 1e12, product, precision)
    assert re.search(r"NVIDIA .+ <https://\S*nvidia\.com/\S+>", peak.source)


def test_the_kinds_of_an_h100_differ() -> None:
    """PCIe, NVL and SXM are three products, in every precision."""
    for precision in PRECISIONS:
        peaks = [peak_of(f"NVIDIA H100 {kind}", precision) for kind in ("PCIe", "NVL", "80GB HBM3")]
        assert len({peak.flops_per_second for peak in peaks}) == 3


def test_a_card_is_found_by_one_name() -> None:
    """No name could mean two products; older drivers left the vendor out, and the peak keeps what was asked for."""
    assert len(set(NAMES)) == len(NAMES)
    older, newer = (peak_of(name, "bf16") for name in ("A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"))
    assert older.flops_per_second == newer.flops_per_second
    assert older.product == "A100-SXM4-40GB"


@pytest.mark.parametrize("product", PRODUCTS, ids=by_name)
def test_the_table_is_plausible(product: Product) -> None:
    """No rate without units, and none left out but where a data sheet is silent.

    From Ampere on tensor cores do twice the operations of half the width: a rate with sparsity would stick out.
    """
    rates = product.tflops
    lacking = {each for each, first in FIRST_WITH_UNITS.items() if product.compute_capability < first}
    assert not lacking & set(rates)
    assert {"fp32", "fp16"} <= set(rates)
    assert set(PRECISIONS) - lacking - set(rates) <= {"fp64", "int8"}
    if product.compute_capability >= (8, 0):
        # GeForce cards accumulate in fp16 at twice the rate at which they accumulate in fp32.
        assert "GeForce" in product.names[0] or rates["fp16"] == rates["bf16"]
        assert rates["bf16"] == pytest.approx(2 * rates["tf32"], rel=0.02)
        assert rates["int8"] == pytest.approx(2 * rates["fp16"], rel=0.02)
        assert rates.get("fp8", rates["int8"]) == rates["int8"]
        assert rates["fp32"] <= rates["tf32"]


@pytest.mark.parametrize(
    ("product", "precision", "needs"),
    [
        ("Tesla T4", "bf16", "compute capability 7.5; bf16 needs 8.0"),
        ("NVIDIA A10", "fp8", "compute capability 8.6; fp8 needs 8.9"),
    ],
)
def test_a_precision_without_units_is_refused(product: str, precision: str, needs: str) -> None:
    """A card that would convert to another precision has none in this one; a rate that nobody told is unknown."""
    with pytest.raises(UsageProblem, match=f"{product} has no units for {precision}") as problem:
        peak_of(product, precision)
    assert problem.value.found == needs
    with pytest.raises(UsageProblem, match="the peak rate of Tesla T4 in fp64 is not known") as problem:
        peak_of("Tesla T4", "fp64")
    assert "no units" not in str(problem.value)


@pytest.mark.parametrize("product", ["NVIDIA H100", "NVIDIA H100 PCIe 80GB", "tesla t4", "T4", "NVIDIA B9000", ""])
def test_a_product_is_matched_exactly(product: str) -> None:
    """A name that is only alike finds nothing: an H100 could be any of three."""
    with pytest.raises(UsageProblem, match="no peak rates of") as problem:
        peak_of(product, "fp16")
    assert "H100 NVL" in problem.value.found


def test_what_is_no_whole_card_has_no_peak() -> None:
    """Neither by its profile nor by its own name does an instance pass for one; nor is there a share of no card."""
    with pytest.raises(UsageProblem, match="peak rate of a MIG instance is not known") as problem:
        peak_of("NVIDIA A100-SXM4-40GB", "fp16", mig_profile="7g.40gb")
    assert "7g.40gb" in problem.value.found
    with pytest.raises(UsageProblem, match="no peak rates of"):
        peak_of("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "fp16")
    with pytest.raises(UsageProblem, match="without a card") as problem:
        peak_of(None, "fp32")
    assert any("--gpu" in remedy for remedy in problem.value.remedies)


@given(st.sampled_from(NAMES), st.text().filter(lambda text: text not in PRECISIONS))
@example("Tesla T4", "float16")
@example("Tesla T4", "FP16")
@example("Tesla T4", "fp16 ")
def test_only_known_precisions(product: str, precision: str) -> None:
    """Torch's names, other cases and anything else are refused by what there is, never read as the nearest one."""
    with pytest.raises(UsageProblem, match="there is no precision") as problem:
        peak_of(product, precision)
    assert problem.value.found == "fp64, fp32, tf32, fp16, bf16, int8, fp8"


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
