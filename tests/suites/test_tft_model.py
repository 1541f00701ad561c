"""The TFT suite's network, its exports, its data for perf_analyzer, and its options, without a server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from suites.tft.apps.tft import export, export_network, prepare_input_data
from suites.tft.apps.tft.contract import ENCODER_LENGTH, INPUTS
from suites.tft.apps.tft.data import random_examples, synthetic
from suites.tft.apps.tft.model import TemporalFusionTransformer, build_model
from suites.tft.apps.tft.serving import Forecaster, Options, read_options

if TYPE_CHECKING:
    from pathlib import Path

NAMES = [spec.name for spec in INPUTS]
S_CAT, S_CONT, K_CAT, K_CONT, O_CAT, O_CONT, TARGET, ID = range(8)


def parameters(module: torch.nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def rows(count: int, dataset: str = "electricity") -> list[torch.Tensor]:
    """Inputs in the order of the contract."""
    found = synthetic(dataset, count).inputs
    return [torch.from_numpy(found[name]) for name in NAMES]


def forecast(network: torch.nn.Module, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The network's forecast, without a gradient."""
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
    """Hidden size 128, four heads and one LSTM layer each way give the published number of parameters."""
    assert parameters(build_model(dataset)) == count


@pytest.mark.parametrize("hour", [0, 10, 22])
def test_no_hour_sees_a_later_one(small: TemporalFusionTransformer, hour: int) -> None:
    """Known inputs of later hours change no forecast before them, and change the ones from then on."""
    inputs, changed = rows(2), rows(2)
    changed[K_CONT][:, ENCODER_LENGTH + hour + 1 :] += 1.0
    before, after = forecast(small, inputs), forecast(small, changed)
    assert torch.equal(before[:, : hour + 1], after[:, : hour + 1])
    assert not torch.isclose(before[:, hour + 1], after[:, hour + 1]).all()


@pytest.mark.parametrize("place", [S_CONT, K_CAT, O_CAT, O_CONT])
def test_a_placeholder_is_absent_whatever_it_holds(small: TemporalFusionTransformer, place: int) -> None:
    """The content of an input with one number instead of 192 hours has no effect."""
    inputs, changed = rows(2), rows(2)
    changed[place] = changed[place] * 17 - 3
    assert torch.equal(forecast(small, inputs), forecast(small, changed))


def test_weights_are_those_of_a_file(tmp_path: Path) -> None:
    """A file's weights replace those of the seed; weights of another size are refused."""
    other, file = build_model("electricity", size="small", seed=5), tmp_path / "weights.pt"
    torch.save(other.state_dict(), file)
    own = build_model("electricity", size="small", weights=file)
    assert parameters_to_vector(own.parameters()).equal(parameters_to_vector(other.parameters()))
    with pytest.raises(RuntimeError, match="size mismatch"):
        build_model("electricity", size="full", weights=file)


def test_onnx_is_reloaded_equal(tmp_path: Path, small: TemporalFusionTransformer) -> None:
    """ONNX that was written and read answers like the network for any batch size, if its packages are there."""
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


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TFT_PRECISON": "fp16"}, "TFT_PRECISON: no such option; known: TFT_SIZE"),
        ({"TFT_SIZE": "huge"}, "TFT_SIZE=huge: none of full, small"),
        ({"TFT_SLOWDOWN": "nan"}, "not a number of 0 or more"),
        ({"TFT_EXPORTED": __file__}, "needs TFT_FORMAT=ts-trace"),
    ],
)
def test_a_wrong_option_is_refused(environment: dict[str, str], message: str) -> None:
    """A misspelt option or an unknown data set is refused, and so is half precision on a CPU."""
    with pytest.raises(ValueError, match=message):
        read_options("electricity", environment)
    with pytest.raises(ValueError, match="none of electricity, traffic"):
        read_options("weather", {})
    with pytest.raises(ValueError, match="TFT_PRECISION=fp16 needs a GPU"):
        Forecaster(Options("electricity", precision="fp16"), device="cpu")


@pytest.mark.parametrize(("more", "count"), [([], 1), (["--examples=3"], 3), (["--random", "--seed=4"], 1)])
def test_data_for_perf_analyzer_is_written_by_a_command(tmp_path: Path, more: list[str], count: int) -> None:
    """Each example of hours or of noise is written to the bit with its shape; a misspelt option ends the command."""
    file = tmp_path / "data.json"
    arguments = ["--dataset=traffic", f"--output={file}", *more]
    prepare_input_data.main(arguments)
    made = random_examples("traffic", 1, seed=4) if "--random" in more else synthetic("traffic", count)
    entries = json.loads(file.read_text())["data"]
    assert [list(entry) for entry in entries] == [NAMES] * count
    for name, values in made.inputs.items():
        found = [np.array(entry[name]["content"], values.dtype).reshape(entry[name]["shape"]) for entry in entries]
        assert np.array_equal(np.stack(found), values)
    with pytest.raises(SystemExit):
        prepare_input_data.main([*arguments, "--exmples=3"])


def test_a_trace_is_exported_by_a_command_and_served(tmp_path: Path) -> None:
    """``python -m tft.export_network`` writes what ``TFT_EXPORTED`` takes, which forecasts any batch as the network."""
    file = tmp_path / "model.pt"
    export_network.main(["--dataset=electricity", "--format=ts-trace", "--size=small", f"--output={file}"])
    served = Forecaster(
        read_options("electricity", {"TFT_FORMAT": "ts-trace", "TFT_EXPORTED": str(file)}), device="cpu"
    )
    own = Forecaster(Options("electricity", size="small"), device="cpu")
    for count in (1, 2, 7):
        asked = [list(synthetic("electricity", count).inputs.values())]
        np.testing.assert_allclose(served.forecast(asked)[0], own.forecast(asked)[0], rtol=1e-4, atol=1e-5)
