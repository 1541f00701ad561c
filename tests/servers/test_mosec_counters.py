"""mosec's batching counters, read from its metrics page."""

from __future__ import annotations

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.measure.counters import Counters, StageTime
from pytest_gpuserve.measure.window import COMPUTE, FORMATION, OTHER_COMPUTE, SERVER
from pytest_gpuserve.servers.mosec import Stage, counters_of, mosec_samples

NAME = "mosec_service_batch_size"


def stage_lines(stage: str, worker: int, sizes: dict[str, int], items: int) -> str:
    """Lines of one worker of a stage; ``sizes`` are batches of each bucket."""
    total = 0
    labels = f'stage="{stage}",worker="{worker}"'
    lines = []
    for edge, count in sizes.items():
        total += count
        lines.append(f'{NAME}_bucket{{{labels},le="{edge}"}} {total}\n')
    return "".join([*lines, f"{NAME}_sum{{{labels}}} {items}\n", f"{NAME}_count{{{labels}}} {total}\n"])


HEAD = f"# HELP {NAME} dynamic batch size\n# TYPE {NAME} histogram\n"
OTHER = (
    "# TYPE mosec_service_throughput counter\n"
    'mosec_service_throughput_total{code="200",endpoint="/a"} 60\n'
    'mosec_service_throughput_total{code="200",endpoint="/b"} 39\n'
    'mosec_service_throughput_total{code="422",endpoint="/b"} 7\n'
    "mosec_service_remaining_task 3\n"
)
TWO_WORKERS = (
    HEAD
    + stage_lines("Inference_1", 1, {"1.0": 2, "8.0": 5, "+Inf": 1}, 45)
    + stage_lines("Inference_1", 2, {"1.0": 1, "8.0": 3, "+Inf": 0}, 20)
    + OTHER
)
TWO_STAGES = HEAD + stage_lines("Inference_2", 1, {"8.0": 4}, 32) + stage_lines("Decode_10", 1, {"8.0": 2}, 4)


BOTH = {"Preprocess_1": 1, "Inference_2": 8, "Decode_10": 8, "Postprocess_11": 1}

TIMES = """\
mosec_service_process_duration_second_sum{stage="total",connection="total"} 1.5
mosec_service_process_duration_second_count{stage="total",connection="total"} 65
mosec_service_process_duration_second_sum{stage="Preprocess_1",connection="1"} 0.065
mosec_service_process_duration_second_count{stage="Preprocess_1",connection="1"} 65
mosec_service_process_duration_second_sum{stage="Inference_2",connection="1"} 0.04
mosec_service_process_duration_second_bucket{stage="Inference_2",connection="1",le="0.008"} 4
mosec_service_process_duration_second_count{stage="Inference_2",connection="1"} 4
mosec_service_process_duration_second_sum{stage="Inference_2",connection="2"} 0.08
mosec_service_process_duration_second_count{stage="Inference_2",connection="2"} 8
mosec_service_batch_duration_second_sum{stage="Inference_2",connection="1"} 0.002
mosec_service_batch_duration_second_count{stage="Inference_2",connection="1"} 12
mosec_service_remaining_task 3
"""


def counters(page: str, stage: str | None = None, sizes: dict[str, int] | None = None) -> Counters:
    """The counters of a page, by the largest batch of each stage."""
    stages = [Stage(name, size, 10) for name, size in (sizes or {"Inference_1": 8}).items()]
    return counters_of(mosec_samples(page), stages, stage)


@pytest.mark.parametrize(
    ("page", "stage", "sizes", "expected"),
    [
        pytest.param(
            TWO_WORKERS,
            None,
            {},
            Counters(items=65, batches=12, batch_sizes={"1": 3, "8": 8, "inf": 1}, requests=99, pending=3),
            id="workers of a stage are added up",
        ),
        pytest.param(TWO_STAGES, None, BOTH, Counters(4, 2, {"8": 2}, requests=0), id="the last one that batches"),
        pytest.param(TWO_STAGES, "Inference_2", BOTH, Counters(32, 4, {"8": 4}, requests=0), id="the named one"),
        pytest.param("", None, {}, Counters(0, 0, requests=0), id="nothing yet"),
        pytest.param(HEAD, "Inference_1", {}, Counters(0, 0, requests=0), id="no batch yet"),
        pytest.param(OTHER, "Inference_1", {}, Counters(0, 0, requests=99, pending=3), id="no batch of this stage yet"),
    ],
)
def test_a_stage_is_counted(page: str, stage: str | None, sizes: dict[str, int], expected: Counters) -> None:
    """A stage has items, batches, good requests, and each batch's size by its bucket's upper edge."""
    assert counters(page, stage, sizes) == expected


def test_a_stage_that_does_not_batch_is_counted_by_its_executions() -> None:
    """A named stage, or the last one of a pipeline, without a histogram of batches is counted by its times."""
    alone = {"Preprocess_1": 1, "Inference_2": 1}
    found = counters(TIMES, None, alone)
    assert (found.items, found.batches, found.batch_sizes) == (12, 12, {"1": 12})
    assert counters(TIMES, "Preprocess_1", BOTH).batches == 65
    assert counters("", None, alone).batch_sizes == {}


def test_a_stage_that_is_not_there_is_told() -> None:
    """The error lists the stages that there are."""
    with pytest.raises(ServerFailed, match="no stage 'Inference_3'") as caught:
        counters(TWO_STAGES, "Inference_3", BOTH)
    assert "its stages: Preprocess_1, Inference_2, Decode_10, Postprocess_11" in str(caught.value)


def test_times_are_named_by_what_they_are() -> None:
    """Times are whole requests, the counted stage over its workers, forming batches, and each other stage."""
    page = HEAD + stage_lines("Inference_2", 1, {"8.0": 12}, 65) + TIMES
    assert counters(page, None, {"Preprocess_1": 1, "Inference_2": 8}).stages == {
        SERVER: StageTime(1.5, 65),
        COMPUTE: StageTime(0.12, 12),
        FORMATION: StageTime(0.002, 12),
        OTHER_COMPUTE + "Preprocess_1": StageTime(0.065, 65),
    }
    chosen = counters(TIMES, "Preprocess_1", BOTH)
    assert chosen.stages[COMPUTE] == StageTime(0.065, 65)
    assert chosen.stages[OTHER_COMPUTE + "Inference_2"] == StageTime(0.12, 12)
    assert FORMATION not in chosen.stages
    # Half a histogram, or none, is no time of zero but none at all; batches are counted all the same.
    for cut in ("_sum", "_count", "_duration_"):
        lines = [line for line in TIMES.splitlines(keepends=True) if cut not in line]
        found = counters(TWO_WORKERS + "".join(lines))
        assert (found.items, found.stages) == (65, {})
