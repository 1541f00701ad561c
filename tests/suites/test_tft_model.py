"""The TFT suite's network: its parameters, its cost, what it may look at, and its exports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.flop_counter import FlopCounterMode

from suites.tft.apps.tft import export, model
from suites.tft.apps.tft.contract import DATASETS, ENCODER_LENGTH, EXAMPLE_LENGTH, HORIZON, INPUTS, OUTPUT, QUANTILES
from suites.tft.apps.tft.data import synthetic
from suites.tft.apps.tft.layers import GatedResidual, InterpretableAttention, VariableEmbedding
from suites.tft.apps.tft.model import Shape, TemporalFusionTransformer, Variables, build_model, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = [spec.name for spec in INPUTS]
S_CAT, S_CONT, K_CAT, K_CONT, O_CAT, O_CONT, TARGET, ID = range(8)


def parameters(module: torch.nn.Module) -> int:
    """How many there are."""
    return sum(parameter.numel() for parameter in module.parameters())


def rows(count: int, dataset: str = "electricity") -> list[torch.Tensor]:
    """Inputs in the order of the contract."""
    found = synthetic(dataset, count).inputs
    return [torch.from_numpy(found[name]) for name in NAMES]


def forecast(network: torch.nn.Module, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Without a gradient."""
    with torch.inference_mode():
        result: torch.Tensor = network(*inputs)
    return result


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def small() -> TemporalFusionTransformer:
    """The small network."""
    return build_model("electricity", size="small")


@pytest.mark.parametrize(("dataset", "count"), [("electricity", 1_633_833), ("traffic", 1_709_865)])
def test_parameters_are_those_of_the_published_network(dataset: str, count: int) -> None:
    """Hidden size 128, four heads, one LSTM layer each way: to the parameter."""
    assert parameters(build_model(dataset)) == count


def test_hyper_parameters_are_the_published_ones() -> None:
    """Hours, heads, quantiles and dropout; scales of layer norms are 1e-3, and each part has its parameters."""
    assert (EXAMPLE_LENGTH, ENCODER_LENGTH, HORIZON, QUANTILES) == (192, 168, 24, (0.1, 0.5, 0.9))
    assert (shape_of("electricity").heads, shape_of("electricity").hidden) == (4, 128)
    assert [shape_of(name).dropout for name in ("electricity", "traffic")] == [0.1, 0.3]
    network = build_model("electricity")
    assert {part.eps for part in network.modules() if isinstance(part, torch.nn.LayerNorm)} == {1e-3}
    assert network.fusion.attention.later.shape == (192, 192)
    parts = [parameters(part) for part in (network.embedding, network.static_encoder, network.fusion)]
    assert parts == [48_256, 381_315, 1_204_262]


def test_matrix_products_cost_209_megaflop() -> None:
    """A forecast is 209.0 MFLOP of products, and 50.3 of the LSTMs, for which the counter has no formula."""
    hidden = shape_of("electricity").hidden
    with FlopCounterMode(display=False) as counter:
        forecast(build_model("electricity"), rows(1))
    lstm = EXAMPLE_LENGTH * 2 * 4 * hidden * 2 * hidden
    assert counter.get_total_flops() / 1e6 == pytest.approx(209.0, abs=0.05)
    # The published network spends another 0.05 on the target's embedding, which is a product with one number here.
    assert (counter.get_total_flops() + lstm) / 1e6 == pytest.approx(259.4, abs=0.1)


@pytest.mark.parametrize("dataset", DATASETS)
def test_forecasts_have_a_row_for_each_hour_and_a_column_for_each_quantile(dataset: str) -> None:
    """(batch, 24, 3), finite, of another series another forecast, and what each example gets alone."""
    network, inputs = build_model(dataset, size="small"), rows(5, dataset)
    together = forecast(network, inputs)
    assert together.shape == (5, *OUTPUT.shape) == (5, 24, 3)
    assert torch.isfinite(together).all()
    assert not torch.equal(together[0], together[1])
    alone = torch.cat([forecast(network, [values[row : row + 1] for values in inputs]) for row in range(5)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hour", [0, 10, 22])
def test_no_hour_sees_a_later_one(small: TemporalFusionTransformer, hour: int) -> None:
    """What is known of later hours changes no forecast until then, and changes those from then on."""
    inputs, changed = rows(2), rows(2)
    changed[K_CONT][:, ENCODER_LENGTH + hour + 1 :] += 1.0
    before, after = forecast(small, inputs), forecast(small, changed)
    assert torch.equal(before[:, : hour + 1], after[:, : hour + 1])
    assert not torch.isclose(before[:, hour + 1], after[:, hour + 1]).all()


def test_only_what_is_known_in_time_is_looked_at(small: TemporalFusionTransformer) -> None:
    """A request carries 192 hours of everything; of the target those from the 168th on do not change the forecast.

    Of the static category only the first hour does, and the id does not.
    """
    inputs, changed = rows(2), rows(2)
    before = forecast(small, inputs)
    changed[TARGET][:, ENCODER_LENGTH:] = 1e3
    changed[S_CAT][:, 1:] = 0
    changed[ID][:] = 7
    assert torch.equal(before, forecast(small, changed))
    changed[TARGET][:, ENCODER_LENGTH - 1] += 1.0
    assert not torch.equal(before, forecast(small, changed))
    inputs[S_CAT][:, 0] = (inputs[S_CAT][:, 0] + 1) % DATASETS["electricity"].series
    assert not torch.equal(before, forecast(small, inputs))


@pytest.mark.parametrize("place", [S_CONT, K_CAT, O_CAT, O_CONT])
def test_a_placeholder_is_absent_whatever_it_holds(small: TemporalFusionTransformer, place: int) -> None:
    """An input with one number instead of 192 hours is not looked at."""
    inputs, changed = rows(2), rows(2)
    changed[place] = changed[place] * 17 - 3
    assert torch.equal(forecast(small, inputs), forecast(small, changed))


@pytest.mark.parametrize(
    ("place", "wide", "message"),
    [
        *((place, (2, 1), r"0 c.* variables where the model has") for place in (S_CAT, K_CONT, TARGET)),
        *((place, (2, 192, 2), "2 continuous variables where the model has 0") for place in (S_CONT, O_CONT)),
    ],
)
def test_variables_have_to_be_those_of_the_network(
    small: TemporalFusionTransformer, place: int, wide: tuple[int, ...], message: str
) -> None:
    """A placeholder for what it has is no zero, and real hours of what it has no weights for are not left out."""
    inputs = rows(2)
    inputs[place] = torch.ones(*wide)
    with pytest.raises(ValueError, match=message):
        forecast(small, inputs)


def test_all_kinds_of_variables_are_used() -> None:
    """A network with all eight inputs takes all of them, and each but the id changes its forecast."""
    shape = Shape(Variables((5,), 2), Variables((3, 4), 1), Variables((6,), 2), targets=1, hidden=8, heads=2)
    torch.manual_seed(0)
    network = TemporalFusionTransformer(shape).eval()

    def hours(width: int, below: int = 0) -> torch.Tensor:
        size = (2, EXAMPLE_LENGTH, width)
        return torch.randint(below, size) if below else torch.randn(size)

    inputs = [hours(1, 5), hours(2), hours(2, 3), hours(1), hours(1, 6), hours(2), hours(1), hours(1, 9)]
    before = forecast(network, inputs)
    assert before.shape == (2, 24, 3)
    for place, values in enumerate(inputs):
        changed = list(inputs)
        changed[place] = values + 1.0 if values.is_floating_point() else (values + 1) % 3
        assert torch.equal(before, forecast(network, changed)) is (place == ID), NAMES[place]


def test_parts_of_nothing_and_of_one_number() -> None:
    """Variables that a data set does not have take no part; the norm of a single number, always 0, is left out."""
    none = VariableEmbedding((), 0, 8)
    assert none(None, None) is None
    assert parameters(none) == 0
    network = GatedResidual(4, 4, output=1)
    assert not torch.equal(network(torch.ones(1, 4)), network(torch.zeros(1, 4)))


def test_heads_share_their_values_and_are_averaged() -> None:
    """Attention is the mean over the heads of each head's weights times the one value, as worked out hour by hour."""
    torch.manual_seed(0)
    network = InterpretableAttention(hidden=4, heads=2, hours=3, dropout=0.0).eval()
    x = torch.randn(1, 3, 4)
    with torch.inference_mode():
        found = network(x)[0]
        queries, keys, value = network.project(x[0]).split((4, 4, 2), dim=-1)
        for hour in range(3):
            seen = torch.zeros(2)
            for head in (slice(0, 2), slice(2, 4)):
                weights = torch.softmax(keys[: hour + 1, head] @ queries[hour, head] / 2**0.5, dim=0)
                seen += weights @ value[: hour + 1] / 2
            torch.testing.assert_close(found[hour], network.out(seen))
    with pytest.raises(ValueError, match="not 3 heads"):
        InterpretableAttention(hidden=4, heads=3, hours=3, dropout=0.0)


def test_weights_are_those_of_the_seed_or_of_a_file(tmp_path: Path, digest: Callable[[Any], str]) -> None:
    """Whatever was drawn before; torch's own state stays as it was; weights of another size are refused."""
    own, other = build_model("electricity", size="small"), build_model("electricity", size="small", seed=5)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    assert digest(build_model("electricity", size="small")) == digest(own) != digest(other)
    assert torch.equal(before, torch.random.get_rng_state())
    file = tmp_path / "weights.pt"
    torch.save(other.state_dict(), file)
    assert digest(build_model("electricity", size="small", weights=file)) == digest(other)
    with pytest.raises(RuntimeError, match="size mismatch"):
        build_model("electricity", size="full", weights=file)


@pytest.mark.parametrize(("dataset", "size"), [("weather", "full"), ("traffic", "huge")])
def test_what_is_not_known_is_named(dataset: str, size: str) -> None:
    """A data set or size that there is not is an error that says which there are."""
    with pytest.raises(ValueError, match=r"no (data set 'weather'; there are electricity|size 'huge'; there are full)"):
        model.shape_of(dataset, size)


def test_onnx_is_reloaded_equal(tmp_path: Path, small: TemporalFusionTransformer) -> None:
    """ONNX that was written and read answers as the network, for any batch size; where the packages are there."""
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    file = tmp_path / "model.onnx"
    export.export_onnx(small, rows(2), file)
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    taken = {one.name for one in session.get_inputs()}
    for count in (1, 7):
        inputs = rows(count)
        feed = {name: values.numpy() for name, values in zip(NAMES, inputs, strict=True) if name in taken}
        (found,) = session.run(None, feed)
        torch.testing.assert_close(torch.from_numpy(found), forecast(small, inputs), rtol=1e-4, atol=1e-4)
