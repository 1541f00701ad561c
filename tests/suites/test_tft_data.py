"""The TFT suite's examples, its ``data.json``, its server's options, and its command lines; no server is started."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.tft.accuracy import PUBLISHED_RISKS, check_risks, risks
from suites.tft.apps.tft.contract import DATASETS, ENCODER_LENGTH, INPUTS, TensorSpec
from suites.tft.apps.tft.data import DTYPES, WEEK, random_examples, synthetic
from suites.tft.apps.tft.data_json import BadData, read_data, write_data

pytest.importorskip("torch")

from suites.tft.apps.tft import export_network, prepare_input_data
from suites.tft.apps.tft.serving import Forecaster, Options, read_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from suites.tft.apps.tft.data import Examples

SPECS = (TensorSpec("a", "INT64", (2, 1)), TensorSpec("b", "FP32", (1,)))
GOOD = {"a": {"content": [1, 2], "shape": [2, 1]}, "b": {"content": [0.5], "shape": [1]}}

pytestmark = pytest.mark.usefixtures("one_thread")


# -- examples


@pytest.mark.parametrize("make", [synthetic, random_examples])
@pytest.mark.parametrize("dataset", DATASETS)
def test_examples_are_of_the_contract(dataset: str, make: Callable[..., Examples]) -> None:
    """Names, types and shapes are the server's; categories have a row in the table, and are the same in all hours."""
    found = make(dataset, 5)
    for spec in INPUTS:
        values = found.inputs[spec.name]
        assert values.shape == (5, *spec.shape)
        assert values.dtype == DTYPES[spec.datatype]
        assert np.isfinite(values).all()
        assert spec.present or (values == 1).all()
    series = found.inputs["s_cat__0"]
    assert (series == series[:, :1]).all()
    assert series.min() >= 0
    assert series.max() < DATASETS[dataset].series
    assert len(found) == 5


def test_examples_are_those_of_the_seed() -> None:
    """Equal arguments give equal examples, another seed others; of nothing there are none."""
    one, same, other = (synthetic("traffic", 3, seed=seed).inputs["target__6"] for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    for dataset, count in (("weather", 1), ("traffic", 0)):
        with pytest.raises(ValueError, match=r"no data set|at least"):
            synthetic(dataset, count)


def test_a_batch_repeats_what_there_is() -> None:
    """Of three examples a batch of seven has the first three times; of one, all are the same, as published."""
    found = synthetic("electricity", 3)
    target = found.batch(7)["target__6"]
    assert np.array_equal(target, found.inputs["target__6"][[0, 1, 2, 0, 1, 2, 0]])
    with pytest.raises(ValueError, match="at least"):
        found.batch(0)


@pytest.mark.parametrize("dataset", DATASETS)
def test_what_is_to_be_forecast_can_be(dataset: str) -> None:
    """The truth is in the target's unit: positive, and as large as the series' level.

    The same hour of a week ago, give or take the noise, has risks in the order of the published ones.
    """
    found = synthetic(dataset, 200)
    assert found.truth.shape == (200, 24)
    # Without noise a series stays between 0.3 and 1.5 times its level.
    assert (found.truth > 0).all()
    assert np.abs(found.truth.mean(axis=1) / found.level - 1).max() < 0.5
    target = found.inputs["target__6"][..., 0].astype(np.float64)
    week_ago = target[:, ENCODER_LENGTH - WEEK :][:, :24]
    band = 1.2816 * np.sqrt(2) * 0.05 / 0.4
    forecasts = found.unscaled(np.stack([week_ago - band, week_ago, week_ago + band], axis=-1))
    check_risks(risks(found.truth, forecasts), {name: 1.6 * most for name, most in PUBLISHED_RISKS[dataset].items()})


# -- data.json


@given(st.integers(1, 4), st.integers(0, 2**31), st.booleans())
def test_what_is_written_is_read(count: int, seed: int, noise: bool) -> None:  # noqa: FBT001 -- drawn
    """One or many examples, of hours or of noise, come back to the bit."""
    found = (random_examples if noise else synthetic)("electricity", count, seed=seed).inputs
    path = Path(f"/dev/shm/gpuserve-test-{np.random.default_rng().integers(2**62)}.json")
    try:
        write_data(path, found)
        read = read_data(path)
    finally:
        path.unlink(missing_ok=True)
    assert list(read) == [spec.name for spec in INPUTS]
    for name, values in read.items():
        assert values.dtype == found[name].dtype
        assert np.array_equal(values, found[name])


def read(tmp_path: Path, data: object) -> dict[str, NDArray[np.generic]]:
    """Read what a file with this JSON holds."""
    path = tmp_path / "data.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return read_data(path, SPECS)


@pytest.mark.parametrize(
    "entry",
    [
        GOOD,
        {"a": [1, 2], "b": [0.5]},
        {"a": {"content": [[1], [2]]}, "b": {"content": [0.5], "dtype": "float32"}},
        {"a": {"b64": base64.b64encode(np.array([1, 2], "<i8").tobytes()).decode()}, "b": [0.5]},
    ],
)
def test_every_form_of_perf_analyzer_is_read(tmp_path: Path, entry: object) -> None:
    """With and without a shape, flat and nested, as numbers and as Base64."""
    found = read(tmp_path, {"data": [entry, GOOD]})
    assert found["a"].tolist() == [[[1], [2]], [[1], [2]]]
    assert found["b"].tolist() == [[0.5], [0.5]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("\x00", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ({"data": []}, 'no list "data"'),
        ({"data": [[GOOD]]}, r"data\[0\] is a list: sequences"),
        ({"data": [GOOD, 3]}, r"data\[1\] is no object"),
        ({"data": [{"a": [1, 2]}]}, "has no b"),
        ({"data": [{**GOOD, "c": [1]}]}, "has 'c', which the model does not take"),
        ({"data": [{**GOOD, "a": {"content": [1, 2], "shape": [1, 2]}}]}, r"shape \[1, 2\], the model's is \[2, 1\]"),
        ({"data": [{**GOOD, "a": {"content": [1, 2], "dtype": "int32"}}]}, "dtype 'int32', the model's is int64"),
        ({"data": [{**GOOD, "a": [1, 2, 3]}]}, "has 3 numbers"),
        ({"data": [{**GOOD, "a": [1, 2.5]}]}, "2.5 among whole numbers"),
        ({"data": [{**GOOD, "a": [1, True]}]}, "True among numbers"),
        ({"data": [{**GOOD, "a": [1, "x" * 99]}]}, "xxx... among numbers"),
        ({"data": [{**GOOD, "a": [1, 2**63]}]}, "that int64 cannot hold"),
        ({"data": [{**GOOD, "b": [1e39]}]}, "that float32 cannot hold"),
        ('{"data": [{"a": [1, 2], "b": [NaN]}]}', "NaN is no number"),
        ('{"data": [{"a": [1, 2], "b": [1e999]}]}', "not finite"),
        ({"data": [{**GOOD, "b": 0.5}]}, "no list of numbers"),
        ({"data": [{**GOOD, "b": {"b64": "AAA"}}]}, "no Base64"),
        ({"data": [{**GOOD, "b": {"b64": "AAAA"}}]}, "has 3 bytes, its shape"),
        ({"data": [{**GOOD, "b": {"b64": "AADAfw=="}}]}, "not finite"),
    ],
)
def test_a_bad_file_says_what_is_wrong_where(tmp_path: Path, data: object, message: str) -> None:
    """In one line, with the file."""
    with pytest.raises(BadData, match=message) as raised:
        read(tmp_path, data)
    assert str(raised.value).startswith(str(tmp_path))
    assert "\n" not in str(raised.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "content", "shape"]), inner),
    max_leaves=8,
)


@given(JSON)
def test_any_other_file_is_refused_or_read(tmp_path_factory: pytest.TempPathFactory, entry: object) -> None:
    """Whatever stands in it, it is read as tensors of the model's shapes, or refused; nothing else is raised."""
    folder = tmp_path_factory.getbasetemp()
    try:
        found = read(folder, {"data": [entry]})
    except BadData:
        return
    assert [(name, values.shape) for name, values in found.items()] == [("a", (1, 2, 1)), ("b", (1, 1))]


def test_what_json_cannot_hold_is_not_written(tmp_path: Path) -> None:
    """NaN would make a file that others cannot read."""
    with pytest.raises(BadData, match="JSON compliant"):
        write_data(tmp_path / "data.json", {"b": np.array([[np.nan]], np.float32)})
    assert not (tmp_path / "data.json").exists()


# -- the server's options


def test_options_are_read() -> None:
    """The data set from the configuration, the rest from variables; others' variables are not looked at."""
    assert read_options("traffic", {"PATH": "/bin"}) == Options("traffic")
    given_ = {"TFT_SIZE": "small", "TFT_PRECISION": "bf16", "TFT_FORMAT": "ts-trace", "TFT_SLOWDOWN": "0.5"}
    found = read_options("electricity", {**given_, "TFT_SEED": "3", "TFT_THREADS": "2"})
    assert found == Options("electricity", "small", "bf16", "ts-trace", seed=3, threads=2, slowdown=0.5)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TFT_PRECISON": "fp16"}, "TFT_PRECISON: no such option; there are TFT_SIZE"),
        ({"TFT_SIZE": "huge"}, "TFT_SIZE=huge: none of full, small"),
        ({"TFT_THREADS": "0"}, "less than 1"),
        ({"TFT_SLOWDOWN": "nan"}, "not a number of 0 or more"),
        ({"TFT_WEIGHTS": "/nowhere"}, "no such file"),
        ({"TFT_EXPORTED": __file__}, "needs TFT_FORMAT=ts-trace"),
        ({"TFT_EXPORTED": __file__, "TFT_WEIGHTS": __file__, "TFT_FORMAT": "ts-trace"}, "leave out TFT_WEIGHTS"),
    ],
)
def test_a_wrong_option_is_refused(environment: dict[str, str], message: str) -> None:
    """A misspelt one would serve another model than the one asked for; half precision on a CPU another speed."""
    with pytest.raises(ValueError, match=message):
        read_options("electricity", environment)
    with pytest.raises(ValueError, match="none of electricity, traffic"):
        read_options("weather", {})
    with pytest.raises(ValueError, match="TFT_PRECISION=fp16 needs a GPU"):
        Forecaster(Options("electricity", precision="fp16"), device="cpu")


def inputs_of(count: int) -> list[NDArray[np.generic]]:
    """Arrays in the order of the contract."""
    return list(synthetic("electricity", count).inputs.values())


def test_requests_are_forecast_together_and_answered_apart() -> None:
    """Three requests of different sizes get what each gets alone; a wrong category is that request's problem."""
    forecaster = Forecaster(Options("electricity", size="small"), device="cpu")
    asked = [inputs_of(count) for count in (1, 40, 2)]
    answers = forecaster.forecast(asked)
    assert [answer.shape for answer in answers] == [(1, 24, 3), (40, 24, 3), (2, 24, 3)]
    for inputs, answer in zip(asked, answers, strict=True):
        assert answer.dtype == np.float32
        np.testing.assert_allclose(answer, forecaster.forecast([inputs])[0], rtol=1e-4, atol=1e-5)
    inputs = inputs_of(2)
    assert not forecaster.problem(inputs)
    for wrong in (-1, 369):
        bad = [inputs[0].copy(), *inputs[1:]]
        bad[0][1, 3] = wrong
        assert forecaster.problem(bad) == "s_cat__0 has categories outside of 0..368"


# -- command lines


def test_data_is_prepared_by_a_command(tmp_path: Path) -> None:
    """``python -m tft.prepare_input_data`` writes what `read_data` reads: one example, or several, or noise."""
    file = tmp_path / "data.json"
    for more, count in (([], 1), (["--examples=3"], 3), (["--random", "--seed=4"], 1)):
        prepare_input_data.main(["--dataset=traffic", f"--output={file}", *more])
        assert len(read_data(file)["target__6"]) == count
    with pytest.raises(SystemExit):
        prepare_input_data.main(["--dataset=traffic", f"--output={file}", "--exmples=3"])


def test_a_trace_is_exported_by_a_command_and_served(tmp_path: Path) -> None:
    """``python -m tft.export_network`` writes what ``TFT_EXPORTED`` takes, which forecasts any batch as the network."""
    file = tmp_path / "model.pt"
    export_network.main(["--dataset=electricity", "--format=ts-trace", "--size=small", f"--output={file}"])
    served = Forecaster(
        read_options("electricity", {"TFT_FORMAT": "ts-trace", "TFT_EXPORTED": str(file)}), device="cpu"
    )
    own = Forecaster(Options("electricity", size="small"), device="cpu")
    for count in (1, 2, 7):
        asked = [inputs_of(count)]
        np.testing.assert_allclose(served.forecast(asked)[0], own.forecast(asked)[0], rtol=1e-4, atol=1e-5)
