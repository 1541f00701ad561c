"""The ResNet suite's model, right answers and formulas, without a worker.

What happens when a worker dies or is told to end is in tests/servers/test_torch_worker*.py.
"""

from __future__ import annotations

import ast
import json
import math
import re
import statistics
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suites.needs import needs_cpp_compiler
from suites.resnet import reference
from suites.resnet.apps import resnet
from suites.resnet.formulas import published_throughput, samples_per_second, spread, weighted_sd
from suites.resnet.points import wanted_points

if TYPE_CHECKING:
    from suites.resnet.apps.resnet import ResNet

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def full() -> ResNet:
    """The published model, without memory for its weights."""
    with torch.device("meta"):
        model: ResNet = resnet.resnet18().eval()
    return model


def _flops(model: ResNet, pixels: int) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 3, pixels, pixels))
    flops: int = counter.get_total_flops()
    return flops


def test_it_has_the_published_number_of_parameters(full: ResNet) -> None:
    """11 689 512: four stages of two basic blocks, 64 channels and a thousand classes."""
    assert sum(parameter.numel() for parameter in full.parameters()) == 11_689_512


@pytest.mark.parametrize(("pixels", "flops"), [(250, 4.687e9), (224, 3.628e9)])
def test_an_image_costs_the_published_operations(full: ResNet, pixels: int, flops: float) -> None:
    """A multiply-add counted as two: 4.687 GFLOP at the published 250 x 250, 3.628 at 224 x 224."""
    assert round(_flops(full, pixels) / 1e9, 3) == flops / 1e9


def test_the_small_one_has_the_same_architecture(full: ResNet) -> None:
    """Every weight by the same name, with a quarter of the channels; an image costs what the size's text says."""
    small = reference.build(reference.SMALL)
    shapes = {name: tuple(value.shape) for name, value in full.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in small.state_dict().items()}
    assert list(found) == list(shapes)
    for name, shape in shapes.items():
        assert len(shape) == len(found[name])
        assert all(wide in {narrow, 4 * narrow} for wide, narrow in zip(shape, found[name], strict=True))
    assert found["layer4.1.conv2.weight"] == (128, 128, 3, 3)
    assert _flops(full, reference.FULL.pixels) // _flops(small.to("meta"), reference.SMALL.pixels) == 810


def test_weights_are_named_as_in_the_published_checkpoint(full: ResNet) -> None:
    """By torchvision's names, buffers too: 122 entries, and no shortcut with weights where the shape stays."""
    names = set(full.state_dict())
    assert len(names) == 122
    assert {"conv1.weight", "bn1.running_var", "layer2.0.downsample.0.weight", "fc.bias"} <= names
    assert "layer4.1.bn2.num_batches_tracked" in names
    assert "layer1.0.downsample.0.weight" not in names


def test_scores_are_one_row_of_a_thousand_for_each_image() -> None:
    """Of shape [batch, 1000], finite, and of an image the same in any batch.

    Of different images further apart than any tolerance of the suite, so that another's answer is seen as wrong.
    """
    model = reference.build(reference.SMALL)
    images = reference.images(reference.SMALL, 5)
    found = reference.scores(model, images)
    assert found.shape == (5, 1000)
    assert np.isfinite(found).all()
    assert np.allclose(found[-1:], reference.scores(model, images[-1:]), rtol=1e-4, atol=1e-4)
    ones = [reference.scores(model, reference.images(reference.SMALL, 1, seed=seed)) for seed in range(4)]
    assert min(np.abs(one - other).max() for one, other in combinations(ones, 2)) > 0.2


def test_a_seed_makes_weights_and_images() -> None:
    """Equal seeds give the same, others something else; torch's random state stays as it was."""
    before = torch.random.get_rng_state()
    one, same, other = (reference.build(reference.SMALL, seed=seed).fc.weight for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)
    images = [reference.images(reference.SMALL, 2, seed=seed) for seed in (3, 3, 4)]
    assert images[0].dtype == np.float32
    assert np.array_equal(images[0], images[1])
    assert not np.array_equal(images[0], images[2])


def test_rounding_to_tf32_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the callable's argument, for the comparison with a CPU; a model built without it has torch's own setting."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    with torch.device("meta"):
        resnet.resnet18(width=4, tf32=False)
        assert torch.backends.cudnn.allow_tf32 is False
        resnet.resnet18(width=4)
        assert torch.backends.cudnn.allow_tf32 is True


def test_the_app_needs_torch_alone() -> None:
    """It imports nothing else: a start takes no longer than torch's import and the model."""
    tree = ast.parse(Path(resnet.__file__).read_text(encoding="utf-8"))
    imported = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert imported == {"__future__", "torch"}


def test_a_trace_holds_one_call(tmp_path: Path) -> None:
    """Chrome's format, with the model's twenty convolutions, once each."""
    path = tmp_path / "new" / "trace.json"
    reference.write_trace(reference.build(reference.SMALL), reference.images(reference.SMALL, 1), path)
    names = [event.get("name") for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]]
    assert names.count("aten::conv2d") == 20


def test_the_published_formula_gives_the_published_number() -> None:
    """334.85 samples/s are 32 divided by the mean latency of 0.09556 s, as printed with five digits.

    The text names no GPU, so this record is never a reference for a measurement: ``published(...)`` finds no device
    for it, and this arithmetic is all that can be compared.
    """
    printed, rounding = 334.85437, 0.000005
    assert published_throughput(0.09556, 32) == pytest.approx(printed, rel=rounding / 0.09556)
    assert published_throughput(0.09556, 32) == pytest.approx(334.87, abs=0.005)


@given(st.lists(st.floats(1e-4, 100), min_size=1, max_size=50), st.integers(1, 256))
def test_the_published_formula_is_no_rate(latencies: list[float], batch: int) -> None:
    """It is N * batch / sum(latencies): right for requests one after the other, and blind to how many overlap."""
    number, total = len(latencies), math.fsum(latencies)
    published = published_throughput(total / number, batch)
    assert published == pytest.approx(number * batch / total)
    # One after the other they take as long as their sum; all at once, no longer than the longest.
    assert samples_per_second(number / total, batch) == pytest.approx(published)
    assert samples_per_second(number / max(latencies), batch) >= published * (1 - 1e-9)


def test_nothing_has_no_mean() -> None:
    """No repetition is an error, not a zero, and nothing is divided by what is no mean."""
    with pytest.raises(ValueError, match="no repetition"):
        spread([])
    for mean in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="mean latency"):
            published_throughput(mean, 32)


@given(st.lists(st.sampled_from([0.001, 0.002, 0.05, 1.5]), min_size=1, max_size=40))
def test_deviations_are_those_of_the_values(values: list[float]) -> None:
    """Of counted values as of a list; of a single one there is none."""
    counts = {value: values.count(value) for value in values}
    found = spread(values)
    assert found.mean == pytest.approx(statistics.fmean(values))
    if len(values) == 1:
        assert (found.sd, weighted_sd(counts)) == (None, None)
    else:
        assert found.sd == pytest.approx(statistics.stdev(values))
        assert weighted_sd(counts) == pytest.approx(statistics.stdev(values), abs=1e-12)


# -- what is run where


def test_two_points_are_measured_without_the_option() -> None:
    """Without ``--gpuserve-full`` the smallest batch alone is measured, eager and compiled."""
    points = wanted_points()
    marked = {point.values: [mark.name for mark in point.marks] for point in points}
    assert [values for values, marks in marked.items() if not marks] == [(1, False), (1, True)]
    assert len(points) == len(marked) == 10
    assert {mark for marks in marked.values() for mark in marks} == {"gpuserve_full"}


def test_without_a_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A test that would need one is skipped, and says which one was looked for: that of CXX, by its path, else g++."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match=re.escape("no C++ compiler 'g++'")):
        needs_cpp_compiler()
    compiler = tmp_path / "my-c++"
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(pytest.skip.Exception, match=re.escape(f"no C++ compiler {str(compiler)!r}")):
        needs_cpp_compiler()
    compiler.touch(mode=0o755)
    needs_cpp_compiler()
