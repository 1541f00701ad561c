"""mosec's batching counters, and nothing left of a real mosec whose pytest is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.measure.counters import Counters, StageTime
from pytest_gpuserve.measure.window import COMPUTE, FORMATION, OTHER_COMPUTE, SERVER
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.mosec import Mosec, Stage, counters_of, mosec_samples
from tests.fakes.children.toolkit import eventually, segments_of
from tests.fakes.own_locks import LOCKS_VARIABLE, OWN_LOCKS
from tests.plugin.conftest import APP, REPOSITORY, TEST
from tests.servers.deployments import Starts, check_all_end, command_lines, descendants, listening

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
    "mosec_service_remaining_task -3\n"
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
            Counters(items=65, batches=12, batch_sizes={"1": 3, "8": 8, "inf": 1}, requests=99),
            id="workers of a stage are added up",
        ),
        pytest.param(TWO_STAGES, None, BOTH, Counters(4, 2, {"8": 2}, requests=0), id="the last one that batches"),
        pytest.param(TWO_STAGES, "Inference_2", BOTH, Counters(32, 4, {"8": 4}, requests=0), id="the named one"),
        pytest.param("", None, {}, Counters(0, 0, requests=0), id="nothing yet"),
        pytest.param(HEAD, "Inference_1", {}, Counters(0, 0, requests=0), id="no batch yet"),
        pytest.param(OTHER, "Inference_1", {}, Counters(0, 0, requests=99), id="no batch of this stage yet"),
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


UP_SECONDS = 60.0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose measurement takes so long that it is certainly killed in it."""
    folder = tmp_path / "suites" / "perf"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(APP.read_text())
    test = TEST.format(assertion="pass", marker="")
    (folder / "test_perf.py").write_text(test.replace("seconds=2,", "seconds=300,"))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for the project's temporary files, short enough for Unix sockets in it."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("moment", "how"), [("start-up", signal.SIGINT), ("load", signal.SIGINT), ("load", signal.SIGKILL)]
)
def test_nothing_is_left_of_a_killed_pytest(project: Path, temporary: Path, moment: str, how: signal.Signals) -> None:
    """Five seconds after its end no process, port, shared memory or folder of pytest is left."""
    words = "app.py" if moment == "start-up" else "pytest_gpuserve.load.engine"
    environment = {name: value for name, value in os.environ.items() if name not in {"CI", "PYTEST_ADDOPTS"}}
    environment |= {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(temporary), LOCKS_VARIABLE: str(project)}
    # To start other installed plugins takes a third of a run.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    argv = [sys.executable, "-m", "pytest", "-p", "pytest_gpuserve.plugin", *OWN_LOCKS, "-p", "no:cacheprovider"]
    null = subprocess.DEVNULL
    with subprocess.Popen(
        argv, cwd=project, env=environment, stdout=null, stderr=null, start_new_session=True
    ) as process:
        try:
            eventually(lambda: words in command_lines(descendants(process.pid)), f"pytest runs {words}", UP_SECONDS)
            if moment == "load":
                # The engine runs once the server has answered: now it is under load, all its workers are up.
                time.sleep(0.5)
                assert listening(descendants(process.pid))
            below = descendants(process.pid)
            ports, memory = listening(below), segments_of(below)
            process.send_signal(how)
            process.wait(60)
            check_all_end(below, 5.0)
            for address in ports:
                with socket.socket() as client:
                    assert client.connect_ex(address) != 0
            eventually(lambda: not any(segment.exists() for segment in memory), "no shared memory is left")
            assert not list(temporary.glob("gpuserve-*"))
        finally:
            process.kill()


def test_a_long_temporary_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A TMPDIR too long for mosec's sockets is an error with a remedy."""
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    kind = Mosec(App("mosec_server", APP, "app.py"))
    with pytest.raises(ServerFailed, match="TMPDIR=/tmp"), Starts(tmp_path / "log").handle(kind).get("/").started():
        pass
    assert not list(long.iterdir())
