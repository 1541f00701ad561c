"""The TFT suite's rules, tables, knee, risks, configurations, network, exports and options, without a server."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from pytest_gpuserve.measure.breakdown import Breakdown
from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.measure.window import Window
from pytest_gpuserve.servers.triton_config import Repository
from suites.published import records_of
from suites.tft import published_rules as rules
from suites.tft.accuracy import check_risks, q_risk, risks
from suites.tft.apps.tft import export, export_network, prepare_input_data
from suites.tft.apps.tft.contract import (
    DATASETS,
    ENCODER_LENGTH,
    INPUTS,
    INSTANCES,
    MAX_BATCH_SIZE,
    MAX_QUEUE_DELAY_US,
    OUTPUT,
    PREFERRED_BATCH_SIZES,
    model_name,
)
from suites.tft.apps.tft.data import random_examples, synthetic
from suites.tft.apps.tft.model import TemporalFusionTransformer, build_model
from suites.tft.apps.tft.serving import Forecaster, Options, read_options
from suites.tft.gathered import check_counts
from suites.tft.knee import Point, knee
from suites.tft.summary import main as run_summary
from suites.tft.table import COLUMNS, check_row, row_of, warning_of
from tests.plugin.conftest import REPOSITORY
from tests.support.builders import window

pytestmark = pytest.mark.usefixtures("one_thread")

MODELS = REPOSITORY / "suites" / "tft" / "apps" / "models"


# -- the contract


def test_an_example_is_6160_bytes() -> None:
    """An example has eight inputs, four of them placeholders of four bytes, and an answer 288 bytes."""
    names = "s_cat__0 s_cont__1 k_cat__2 k_cont__3 o_cat__4 o_cont__5 target__6 id__7"
    assert [spec.name for spec in INPUTS] == names.split()
    assert [spec.bytes for spec in INPUTS] == [1536, 4, 4, 2304, 4, 4, 768, 1536]
    assert [spec.present for spec in INPUTS] == [spec.bytes > 4 for spec in INPUTS]
    assert sum(spec.bytes for spec in INPUTS) == 6160
    assert OUTPUT.bytes == 288


@pytest.mark.parametrize("dataset", DATASETS)
def test_configurations_are_the_contract(dataset: str) -> None:
    """``config.pbtxt`` of each model has the contract's tensors, sizes and instances, and there is no other model.

    Both data sets are served by the same code.
    """
    pytest.importorskip("tritonclient.grpc")
    config = Repository(MODELS).config(model_name(dataset))
    assert (config.name, config.backend) == (model_name(dataset), "python")
    for tensors, specs in ((config.input, INPUTS), (config.output, (OUTPUT,))):
        types = [tensor.data_type for tensor in tensors]
        found = [(tensor.name, tuple(tensor.dims)) for tensor in tensors]
        assert found == [(spec.name, spec.shape) for spec in specs]
        assert types == [{"FP32": 11, "INT64": 9}[spec.datatype] for spec in specs]
    assert config.parameters["dataset"].string_value == dataset
    assert config.max_batch_size == MAX_BATCH_SIZE
    assert tuple(config.dynamic_batching.preferred_batch_size) == tuple(PREFERRED_BATCH_SIZES)
    assert config.dynamic_batching.max_queue_delay_microseconds == MAX_QUEUE_DELAY_US
    kind_model = 3
    assert [(group.count, group.kind) for group in config.instance_group] == [(INSTANCES, kind_model)]
    assert {folder.name for folder in MODELS.iterdir()} == set(map(model_name, DATASETS))
    assert len({(MODELS / model_name(name) / "1" / "model.py").read_text(encoding="utf-8") for name in DATASETS}) == 1


# -- the published runner's rules


def test_the_published_sweep_has_32_points() -> None:
    """Batches of 1024 on two instances give 16 examples a request, and 8 to 256 users in steps of 8."""
    assert rules.online_plan(1024, instances=2) == rules.OnlinePlan(16, tuple(range(8, 257, 8)))


@pytest.mark.parametrize(
    ("windows", "stable"),
    [
        ([(100, 0.1), (105, 0.1)], False),
        ([(100, 0.1), (105, 0.1), (95, 0.1)], True),
        ([(10, 9.0), (100, 0.1), (105, 0.1), (95, 0.1)], True),
        ([(100, 0.1), (100, 0.1), (130, 0.1)], False),
        ([(100, 0.1), (100, 0.13), (100, 0.1)], False),
    ],
)
def test_three_windows_that_agree_are_stable(windows: list[tuple[float, float]], *, stable: bool) -> None:
    """Throughput and latency of the last three windows alone count, each within 10 % of their mean."""
    assert rules.is_stable(windows) is stable


# -- the table


def summary(seconds: list[float], *, measured: float) -> Window:
    """Of these latencies, answered within so many seconds."""
    return window(seconds, seconds=measured)


def good_row() -> dict[str, float]:
    """A row of ten users, each with requests of 100 ms."""
    parts = Breakdown(0.001, 0.009, 0.04, 0.01, 0.03, 0.01, 0.0)
    return row_of(summary([0.1] * 100, measured=1.0), parts, batch=16, concurrency=10)


def test_a_row_has_the_published_columns() -> None:
    """A row has the fifteen columns in their order, in milliseconds and examples a second."""
    row = good_row()
    assert tuple(row) == COLUMNS
    assert len(COLUMNS) == 15
    assert COLUMNS[:4] == ("Batch", "Concurrency", "Inferences/Second", "Client Send (ms)")
    assert (row["Inferences/Second"], row["Server Queue (ms)"]) == (1600, 40)
    assert row["p99 latency (ms)"] == pytest.approx(100, rel=1e-3)


def test_a_row_that_does_not_add_up_is_found() -> None:
    """Another sum of the components, falling percentiles, and a tenth of the users missing by Little's law."""
    row = good_row()
    check_row({**row, "Server Queue (ms)": 40.2})
    for wrong in ({"Server Queue (ms)": 40.4}, {"p90 latency (ms)": 99.0}, {"Network+Server Send/Recv (ms)": math.nan}):
        with pytest.raises(AssertionError):
            check_row({**row, **wrong})
    assert warning_of(row) == ""
    assert "0.900" in warning_of({**row, "Inferences/Second": 1440.0})


def test_counts_of_server_and_client_have_to_agree() -> None:
    """Sizes add up to items, items to requests, and requests to the client's count, except at the edges.

    A batch that one of Triton's counters has already and another not yet is allowed.
    """

    def counters(sizes: dict[str, int], requests: int | None = 1000, *, batches: int = 200) -> Counters:
        return Counters(items=16000, batches=batches, batch_sizes=sizes, requests=requests)

    row = good_row()
    for right in (counters({"80": 200}), counters({"80": 199}, 999)):
        check_counts(right, 1000, row, loads=2)
    for wrong in (
        counters({"80": 190}),
        counters({"64": 200}),
        counters({"80": 200}, None),
        counters({"80": 200}, 1090),
        counters({"8": 2000}, batches=2000),
    ):
        with pytest.raises(AssertionError):
            check_counts(wrong, 1000, row, loads=2)


# -- the knee


@pytest.mark.parametrize(
    ("device", "backend", "scenario", "budget_ms", "at", "throughput"),
    [
        ("T4", "NVIDIA TensorRT", "offline", 1000, 1024, 13054),
        ("T4", "NVIDIA TensorRT", "offline", 2.5, 1, 415),
        ("T4", "NVIDIA TensorRT", "offline", 2.4, None, None),
        ("A30", "NVIDIA TensorRT", "offline", 20, 512, 27236),
        ("V100-SXM2-32GB", "PyTorch", "online", 1000, 144, 11808),
        ("A100-SXM4-80GB", "NVIDIA TensorRT", "online", 1000, 240, 40832),
    ],
)
def test_knees_of_the_published_tables(
    *, device: str, backend: str, scenario: str, budget_ms: float, at: int | None, throughput: float | None
) -> None:
    """Knees for electricity are those read off the tables by hand; without a point within the budget there is none."""
    keys = {"dataset": "electricity", "backend": backend, "scenario": scenario}
    swept = "batch" if scenario == "offline" else "concurrency"
    points = [
        Point(record["keys"][swept], record["keys"]["batch"] * values["throughput"], values["latency.p99"])
        for record in records_of("tft")[device]
        if keys.items() <= record["keys"].items() and (values := record["values"])
    ]
    assert len(points) == (11 if scenario == "offline" else 32)
    best = knee(points, budget_ms / 1e3)
    assert (None if best is None else best.at) == at
    assert best is None or best.throughput == pytest.approx(throughput, rel=1e-3)


# -- accuracy


def test_q_risk_by_hand() -> None:
    """A forecast too low by 1 costs q, too high by 1 costs 1 - q, in any unit."""
    truth, forecast = np.array([3.0, 5.0]), np.array([2.0, 6.0])
    assert q_risk(truth, forecast, 0.9) == pytest.approx(2 * (0.9 + 0.1) / 2 / 4)
    assert q_risk(1e3 * truth, 1e3 * (truth - 1.0), 0.9) == pytest.approx(2 * 0.9 / 4)
    assert q_risk(truth, truth + 1.0, 0.9) == pytest.approx(2 * 0.1 / 4)
    assert q_risk(truth, truth, 0.5) == 0


def test_risks_above_their_thresholds_are_found() -> None:
    """Each quantile has its own threshold; an unknown or missing risk is never a pass."""
    truth = np.full((2, 24), 4.0)
    found = risks(truth, np.stack([truth, truth + 1, truth - 1], axis=-1))
    assert found == {"p10": 0.0, "p50": pytest.approx(0.25), "p90": pytest.approx(0.45)}
    check_risks(found, {"p10": 0.01, "p50": 0.26, "p90": 0.46})
    for thresholds, wrong in (
        ({"p50": 0.26, "p90": 0.4}, found),
        ({"p99": 1.0}, found),
        ({"p50": 1.0}, {"p50": math.nan}),
    ):
        with pytest.raises(AssertionError, match="q-risk: p"):
            check_risks(wrong, thresholds)


# -- the summary of a run


def experiment(name: str, outcome: str, throughput: float | None) -> dict[str, object]:
    """A test as ``--gpuserve-json`` has it."""
    latency = {"mean": 0.1, "p50": 0.1, "p99": None}
    run = throughput and {"throughput": throughput, "latency": latency, "batching_ratio": 56.25}
    verdicts = [{"verdict": "PASS"}, {"verdict": "IMPROVED"}, {"verdict": "PASS"}]
    return {"nodeid": f"suites/tft/test_{name}", "outcome": outcome, "verdicts": verdicts, "run": run}


def test_a_run_is_summed_up(tmp_path: Path) -> None:
    """Passed tests come first, the best first; an unmeasured value is empty, and other suites are left out."""
    tests = [
        experiment("x.py::test_online[electricity-4]", "passed", 9.5),
        experiment("x.py::test_online[electricity-8]", "failed", 11.0),
        experiment("x.py::test_online[traffic-8]", "passed", 10.0),
        experiment("x.py::test_online[traffic-16]", "skipped", None),
        {**experiment("x.py::test_x", "passed", 99.0), "nodeid": "suites/catdog/test_x.py::test_x"},
    ]
    (tmp_path / "out.json").write_text(json.dumps({"schema": 2, "tests": tests}))
    run_summary([str(tmp_path / "out.json"), str(tmp_path / "summary.csv")])
    with (tmp_path / "summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row.pop("experiment").partition("[")[2], row["status"]) for row in rows] == [
        ("traffic-8]", "passed"),
        ("electricity-4]", "passed"),
        ("electricity-8]", "failed"),
        ("traffic-16]", "skipped"),
    ]
    assert ",".join(rows[0]) == "status,verdicts,requests_per_second,mean_ms,p50_ms,p99_ms,server_batch"
    assert ",".join(rows[0].values()) == "passed,PASS IMPROVED,10,100,100,,56.25"
    assert rows[-1]["requests_per_second"] == ""


# -- the network

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
