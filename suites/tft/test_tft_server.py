"""Both models behind a real Triton, without a load: their tensors, knobs and limits, and how right they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pytest_gpuserve.answers import Refused
from suites.tft.accuracy import PUBLISHED_RISKS, check_risks, risks
from suites.tft.apps.tft.contract import (
    DATASETS,
    INPUTS,
    INSTANCES,
    MAX_BATCH_SIZE,
    MAX_QUEUE_DELAY_US,
    OUTPUT,
    PREFERRED_BATCH_SIZES,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pytest_gpuserve.servers.instance import Instance
    from suites.tft.conftest import Tft

    Running = tuple[Tft, Instance]


@pytest.fixture(
    scope="module",
    params=[pytest.param("electricity", marks=pytest.mark.smoke), "traffic"],
)
def running(request: pytest.FixtureRequest, deploy: Callable[..., Tft]) -> Generator[Running, None, None]:
    """The deployment of each data set in fp32, and its server, which runs for all tests of this file."""
    tft = deploy(request.param, TFT_PRECISION="fp32")
    with tft.batch(1).started() as instance:
        yield tft, instance


def test_tensors_are_those_of_the_contract(running: Running) -> None:
    """Triton tells eight inputs and one output with the published names, types and shapes, 6160 bytes an example."""
    tft, instance = running
    found = json.loads(tft.server.get(f"/v2/models/{tft.model}").ask(instance).body)

    def told(tensors: list[dict[str, object]]) -> list[tuple[object, ...]]:
        return [(tensor["name"], tensor["datatype"], tensor["shape"]) for tensor in tensors]

    assert told(found["inputs"]) == [(spec.name, spec.datatype, [-1, *spec.shape]) for spec in INPUTS]
    assert told(found["outputs"]) == [(OUTPUT.name, OUTPUT.datatype, [-1, *OUTPUT.shape])]
    assert sum(spec.bytes for spec in INPUTS) == 6160


def test_knobs_are_read_back(running: Running) -> None:
    """Batch limit, preferred sizes, delay and instances are used as requested."""
    tft, instance = running
    wanted = {
        "max_batch_size": str(MAX_BATCH_SIZE),
        "preferred_batch_size": " ".join(map(str, PREFERRED_BATCH_SIZES)),
        "max_queue_delay_us": str(MAX_QUEUE_DELAY_US),
        "instances": f"{INSTANCES} x MODEL",
    }
    assert {name: instance.settings[f"{tft.model}.{name}"].used for name in wanted} == wanted


@pytest.mark.parametrize("batch", [1, 16, MAX_BATCH_SIZE])
def test_batches_are_answered_right(running: Running, batch: int) -> None:
    """From 1 to 1024 examples in a request, each forecast is that of the in-process network, within 1e-4."""
    tft, instance = running
    answer = tft.batch(batch).ask(instance)
    assert tft.expect(batch)(answer.body)


def test_a_batch_above_the_limit_is_refused(running: Running) -> None:
    """1025 examples are an error that names the limit, and the server goes on."""
    tft, instance = running
    with pytest.raises(Refused) as refused:
        tft.batch(MAX_BATCH_SIZE + 1).ask(instance)
    assert refused.value.status == 400
    assert str(MAX_BATCH_SIZE) in json.loads(refused.value.body)["error"]
    tft.batch(1).ask(instance)


def test_a_bad_category_is_refused(running: Running) -> None:
    """A series that the table has no row for is an error of that request, and no end of the server."""
    tft, instance = running
    inputs = tft.examples.batch(1)
    inputs["s_cat__0"] = np.full_like(inputs["s_cat__0"], DATASETS[tft.dataset].series)
    with pytest.raises(Refused) as refused:
        tft.server.infer(inputs).ask(instance)
    assert "s_cat__0" in json.loads(refused.value.body)["error"]
    tft.batch(1).ask(instance)


def test_accuracy_is_that_of_the_network(running: Running) -> None:
    """The q-risk of the served forecasts is the network's own; untrained weights miss the published thresholds."""
    tft, instance = running
    answer = tft.batch(len(tft.examples)).ask(instance)
    served = np.asarray(answer.tensors[OUTPUT.name], dtype=np.float64)
    found, own = (
        risks(tft.examples.truth, tft.examples.unscaled(values)) for values in (served, tft.answers.astype(np.float64))
    )
    check_risks(found, {name: risk * (1 + 1e-3) for name, risk in own.items()})
    with pytest.raises(AssertionError, match="p50"):
        check_risks(found, PUBLISHED_RISKS[tft.dataset])
