"""The ResNet suite's model and formulas, without a worker."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from suites.resnet.apps import resnet
from suites.resnet.apps.resnet import ResNet
from suites.resnet.formulas import published_throughput, samples_per_second

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def full() -> ResNet:
    """The published model, without memory for its weights."""
    with torch.device("meta"):
        model: ResNet = resnet.resnet18().eval()
    return model


def test_it_has_the_published_number_of_parameters(full: ResNet) -> None:
    """11 689 512: four stages of two basic blocks, 64 channels and a thousand classes."""
    assert sum(parameter.numel() for parameter in full.parameters()) == 11_689_512


@pytest.mark.parametrize(("pixels", "flops"), [(250, 4.687e9), (224, 3.628e9)])
def test_an_image_costs_the_published_operations(full: ResNet, pixels: int, flops: float) -> None:
    """A multiply-add counted as two: 4.687 GFLOP at the published 250 x 250, 3.628 at 224 x 224."""
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        full(torch.empty(1, 3, pixels, pixels))
    assert round(counter.get_total_flops() / 1e9, 3) == flops / 1e9


def test_the_published_formula_gives_the_published_number() -> None:
    """334.85 samples/s are 32 divided by the mean latency of 0.09556 s, as printed with five digits.

    The text does not name a GPU, so ``published(...)`` compares no measurement with this record.
    """
    printed, rounding = 334.85437, 0.000005
    assert published_throughput(0.09556, 32) == pytest.approx(printed, rel=rounding / 0.09556)
    assert published_throughput(0.09556, 32) == pytest.approx(334.87, abs=0.005)


@given(st.lists(st.floats(1e-4, 100), min_size=1, max_size=50), st.integers(1, 256))
def test_the_published_formula_is_no_rate(latencies: list[float], batch: int) -> None:
    """The formula N * batch / sum(latencies) is right for requests one after the other, and ignores overlap."""
    number, total = len(latencies), math.fsum(latencies)
    published = published_throughput(total / number, batch)
    assert published == pytest.approx(number * batch / total)
    # One after the other they take as long as their sum; all at once, no longer than the longest.
    assert samples_per_second(number / total, batch) == pytest.approx(published)
    assert samples_per_second(number / max(latencies), batch) >= published * (1 - 1e-9)
