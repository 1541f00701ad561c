"""The codegen suite's analyses of counters, on the published ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuserve.measure.counters import Counters, StageTime
from pytest_gpuserve.measure.window import COMPUTE, QUEUE
from suites.codegen.analysis import (
    INFER,
    mean_batch,
    mean_queue_us,
    share_by_request,
    unexplained_seconds,
    wanted_replicas,
)
from suites.codegen.repository import ENSEMBLE, GENERATION, POSTPROCESSING, PREPROCESSING, STEPS

PUBLISHED = Path(__file__).parents[2] / "baselines" / "A100-SXM4-80GB" / "published" / "codegen.json"

PRINTED = {
    8: ("2.73", "0.83", 19.1677),
    32: ("0.76", "0.26", 19.7297),
    128: ("0.16", "0.08", 12.7440),
    512: ("0.06", "0.06", 15.4473),
}
"""By output length: shares of pre- and postprocessing in percent, and what count / exec_count comes to."""


def published_parts(output_len: int) -> dict[str, Counters]:
    """The counters that were printed for an output length."""
    entries: list[dict[str, Any]] = json.loads(PUBLISHED.read_text(encoding="utf-8"))["entries"]
    parts = {}
    for entry in entries:
        keys, counted = entry["keys"], entry["counters"]
        if keys["record_kind"] == "triton_metrics" and keys["output_len"] == output_len:
            requests = counted["nv_inference_count"]
            seconds = counted["nv_inference_compute_infer_duration_us"] / 1e6
            parts[keys["model"]] = Counters(
                items=requests,
                batches=counted["nv_inference_exec_count"],
                stages={INFER: StageTime(seconds, requests)},
                requests=requests,
            )
    return parts


def printed_as(percent: float) -> set[str]:
    """How a percentage may be printed with two digits: rounded, or cut off, as some of the published ones are."""
    return {f"{percent:.2f}", f"{math.floor(percent * 100) / 100:.2f}"}


@pytest.mark.parametrize("output_len", PRINTED)
def test_published_counters_give_the_published_shares(output_len: int) -> None:
    """Each of the eight published percentages is the share by request, rounded or cut off.

    The generating model alone batches; all but about a microsecond of each request of the ensemble is its steps'.
    """
    parts = published_parts(output_len)
    assert set(parts) == {*STEPS, ENSEMBLE}
    preprocessing, postprocessing, batch = PRINTED[output_len]
    assert preprocessing in printed_as(100 * share_by_request(parts, PREPROCESSING))
    assert postprocessing in printed_as(100 * share_by_request(parts, POSTPROCESSING))
    assert mean_batch(parts[GENERATION]) == pytest.approx(batch, abs=1e-4)
    assert {mean_batch(part) for name, part in parts.items() if name != GENERATION} == {1.0}
    assert unexplained_seconds(parts) == pytest.approx(1.0e-6, rel=0.02)


def counted(requests: int, batches: int, *, request_seconds: float, seconds: float, queue_seconds: float) -> Counters:
    """Counters of a model."""
    timed = {INFER: (request_seconds, requests), COMPUTE: (seconds, batches), QUEUE: (queue_seconds, requests)}
    return Counters(
        requests, batches, stages={name: StageTime(*each) for name, each in timed.items()}, requests=requests
    )


def parts_of_ten() -> dict[str, Counters]:
    """Ten requests in two batches of five that took 0.1 s each, with 0.01 s of preprocessing for each request.

    Computing time has what carries tensors there and back, too: a fifth more of pre- and postprocessing.
    """
    parts = {
        PREPROCESSING: counted(10, 10, request_seconds=0.1, seconds=0.12, queue_seconds=0.0),
        GENERATION: counted(10, 2, request_seconds=1.0, seconds=0.2, queue_seconds=0.44),
        POSTPROCESSING: counted(10, 10, request_seconds=0.05, seconds=0.06, queue_seconds=0.0),
    }
    return {**parts, ENSEMBLE: counted(10, 10, request_seconds=1.15, seconds=1.15, queue_seconds=0.0)}


def test_queue_time_is_the_autoscalers_formula() -> None:
    """The mean over the four models of 440 000 us / (1 + 10) and three zeros; without any request it is finite."""
    assert mean_queue_us(parts_of_ten()) == pytest.approx(440_000 / 11 / 4)
    idle = counted(0, 0, request_seconds=0.0, seconds=0.0, queue_seconds=0.002)
    assert mean_queue_us({"m": idle}) == pytest.approx(2000)


@pytest.mark.parametrize(
    ("replicas", "queue_us", "wanted"),
    [(1, 54_900, 1), (1, 56_000, 2), (2, 150_000, 6), (4, 25_000, 2), (4, 1, 1), (3, 45_100, 3), (3, 40_000, 3)],
)
def test_replicas_are_those_of_kubernetes(replicas: int, queue_us: float, wanted: int) -> None:
    """Rounded up, left alone within a tenth of the target, and one at least."""
    assert wanted_replicas(replicas, queue_us) == wanted
