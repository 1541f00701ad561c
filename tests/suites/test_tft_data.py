"""The TFT suite's ``data.json``, its server's options, and its command lines; no server is started."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.tft.apps.tft.contract import INPUTS, TensorSpec
from suites.tft.apps.tft.data import random_examples, synthetic
from suites.tft.apps.tft.data_json import BadData, read_data, write_data

pytest.importorskip("torch")

from suites.tft.apps.tft import export_network, prepare_input_data
from suites.tft.apps.tft.serving import Forecaster, Options, read_options

if TYPE_CHECKING:
    from numpy.typing import NDArray


SPECS = (TensorSpec("a", "INT64", (2, 1)), TensorSpec("b", "FP32", (1,)))
GOOD = {"a": {"content": [1, 2], "shape": [2, 1]}, "b": {"content": [0.5], "shape": [1]}}

pytestmark = pytest.mark.usefixtures("one_thread")


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
        ({"data": []}, 'list "data" with at least one example is missing'),
        ({"data": [GOOD, 3]}, r"data\[1\] is not an object"),
        ({"data": [{"a": [1, 2]}]}, "has no b"),
        ({"data": [{**GOOD, "c": [1]}]}, "has 'c', which the model does not take"),
        ({"data": [{**GOOD, "a": {"content": [1, 2], "shape": [1, 2]}}]}, r"shape \[1, 2\], the model's is \[2, 1\]"),
        ({"data": [{**GOOD, "a": [1, 2, 3]}]}, "has 3 numbers"),
        ({"data": [{**GOOD, "a": [1, 2.5]}]}, "2.5 among whole numbers"),
        ('{"data": [{"a": [1, 2], "b": [1e999]}]}', "not finite"),
        ({"data": [{**GOOD, "b": {"b64": "AAA"}}]}, "no Base64"),
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


# -- the server's options


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
