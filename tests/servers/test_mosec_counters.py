"""mosec's batching counters, scraped from a real HTTP server on the loopback."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.measure.window import COMPUTE, FORMATION, OTHER_COMPUTE, SERVER, StageTime
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.base import Site
from pytest_gpuserve.servers.mosec import Mosec, batch_counters
from pytest_gpuserve.servers.prometheus import Sample, read_samples, scrape
from tests.fakes.threads import in_a_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "mosec_service_batch_size"


def stage_lines(stage: str, worker: int, sizes: dict[str, int], items: int) -> str:
    """What mosec shows of one worker of a stage; ``sizes`` are batches of each bucket."""
    total = 0
    lines = []
    for edge, count in sizes.items():
        total += count
        lines.append(f'{NAME}_bucket{{stage="{stage}",worker="{worker}",le="{edge}"}} {total}')
    lines.append(f'{NAME}_sum{{stage="{stage}",worker="{worker}"}} {items}')
    lines.append(f'{NAME}_count{{stage="{stage}",worker="{worker}"}} {total}')
    return "\n".join(lines) + "\n"


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


@dataclass
class Page:
    """What the server answers next."""

    status: int = 200
    body: bytes = b""
    asked: list[str] = field(default_factory=list)
    close_early: bool = False


@dataclass
class Web:
    """A server that shows a page."""

    port: int
    page: Page


@pytest.fixture
def web() -> Iterator[Web]:
    """A real server on a free port of the loopback."""
    page = Page()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page.asked.append(self.path)
            if page.close_early:
                self.close_connection = True
                return
            self.send_response(page.status)
            self.send_header("Content-Length", str(len(page.body)))
            self.end_headers()
            self.wfile.write(page.body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with in_a_thread(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield Web(server.server_port, page)


def counters(page: str, stage: str | None = None) -> Counters:
    """The counters of a page."""
    return batch_counters(read_samples(page), stage)


def test_workers_of_a_stage_are_added_up() -> None:
    """Two workers are one stage: items, batches and sizes are sums, each size by the upper edge of its bucket."""
    assert counters(TWO_WORKERS) == Counters(
        items=65, batches=12, batch_sizes={"1": 3, "8": 8, "inf": 1}, requests=99, pending=3
    )


def test_the_last_stage_counts() -> None:
    """Of several stages that batch the one farthest down the pipeline, by number and not by letters."""
    assert counters(TWO_STAGES) == Counters(items=4, batches=2, batch_sizes={"8": 2}, requests=0)


def test_a_named_stage_counts() -> None:
    """A name chooses, and a name that batches nothing is an error that lists those that do."""
    assert counters(TWO_STAGES, "Inference_2") == Counters(items=32, batches=4, batch_sizes={"8": 4}, requests=0)
    with pytest.raises(ServerFailed, match="'Inference_3'") as caught:
        counters(TWO_STAGES, "Inference_3")
    assert "['Inference_2', 'Decode_10']" in str(caught.value)


@pytest.mark.parametrize("stage", [None, "Inference_1"])
@pytest.mark.parametrize("page", ["", OTHER, HEAD])
def test_before_the_first_batch_all_is_zero(page: str, stage: str | None) -> None:
    """A stage is shown only after its first batch; until then nothing was executed."""
    found = counters(page, stage)
    assert (found.items, found.batches, found.batch_sizes) == (0, 0, {})


def test_requests_are_those_that_were_answered_well() -> None:
    """Over all routes, and without those that failed; before the first there were none."""
    assert counters(TWO_WORKERS).requests == 99
    assert counters("").requests == 0


def test_times_are_named_by_what_they_are() -> None:
    """Whole requests, the counted stage over its workers, how its batches formed, and the other stages each."""
    page = HEAD + stage_lines("Inference_2", 1, {"8.0": 12}, 65) + TIMES
    assert counters(page).stages == {
        SERVER: StageTime(1.5, 65),
        COMPUTE: StageTime(0.12, 12),
        FORMATION: StageTime(0.002, 12),
        OTHER_COMPUTE + "Preprocess_1": StageTime(0.065, 65),
    }


def test_without_batching_the_last_stage_computes() -> None:
    """A pipeline of single requests has times too, and a chosen stage is the one that counts."""
    assert counters(TIMES).stages[COMPUTE] == StageTime(0.12, 12)
    chosen = counters(TIMES, "Preprocess_1")
    assert (chosen.batches, chosen.stages[COMPUTE]) == (0, StageTime(0.065, 65))
    assert chosen.stages[OTHER_COMPUTE + "Inference_2"] == StageTime(0.12, 12)
    assert FORMATION not in chosen.stages


@pytest.mark.parametrize("cut", ["_sum", "_count", "_duration_"])
def test_a_mosec_without_times_has_none(cut: str) -> None:
    """Half a histogram, or none, is no time of zero but none at all; batches are counted all the same."""
    lines = [line for line in TIMES.splitlines(keepends=True) if cut not in line]
    found = counters(TWO_WORKERS + "".join(lines))
    assert (found.items, found.stages) == (65, {})


@pytest.mark.parametrize("edge", ["", ',le=""', ',le="many"'])
def test_a_bucket_without_an_edge_makes_no_sense(edge: str) -> None:
    """A bucket that says no size is the server's failure, not a traceback of ours."""
    page = f'{HEAD}{NAME}_bucket{{stage="Inference_1"{edge}}} 1\n{NAME}_count{{stage="Inference_1"}} 1\n'
    with pytest.raises(ServerFailed, match="no sense"):
        counters(page)


def test_a_page_is_fetched_from_the_loopback(web: Web, tmp_path: Path) -> None:
    """The server kind reads ``/metrics`` of its port."""
    app = tmp_path / "app.py"
    app.write_text("")
    web.page.body = TWO_WORKERS.encode()
    found = Mosec(App("mosec_server", app, "app.py")).read_counters(Site(tmp_path, {"http": web.port}))
    assert (found.items, found.batches) == (65, 12)
    assert web.page.asked == ["/metrics"]


def configured(folder: Path, **sizes: int) -> Mosec:
    """A mosec whose stages take batches of these sizes at most, as it noted when it started in this folder."""
    app = folder / "app.py"
    app.write_text("")
    (folder / "mosec").mkdir()
    stages = [{"worker": name, "max_batch_size": size, "max_wait_time": 10} for name, size in sizes.items()]
    config = {"capacity": 1024, "timeout": 3000, "runtimes": stages}
    (folder / "mosec" / "config.json").write_text(json.dumps(config))
    return Mosec(App("mosec_server", app, "app.py"))


def test_without_batching_each_item_is_an_execution(web: Web, tmp_path: Path) -> None:
    """A last stage that takes one request at a time has a batching ratio of one, not an unknown one."""
    web.page.body = TIMES.encode()
    found = configured(tmp_path, Preprocess_1=1, Inference_2=1).read_counters(Site(tmp_path, {"http": web.port}))
    assert (found.items, found.batches, found.batch_sizes) == (12, 12, {"1": 12})
    assert found.stages[COMPUTE] == StageTime(0.12, 12)


@pytest.mark.parametrize("page", [TIMES, OTHER])
def test_a_stage_that_will_batch_has_not_yet(web: Web, tmp_path: Path, page: str) -> None:
    """Before its first batch a stage that batches has executed nothing, whatever the stages before it have."""
    web.page.body = page.encode()
    found = configured(tmp_path, Preprocess_1=1, Inference_2=32).read_counters(Site(tmp_path, {"http": web.port}))
    assert (found.items, found.batches, found.batch_sizes) == (0, 0, {})


def test_labels_and_values_are_read(web: Web) -> None:
    """A sample keeps its name, its labels and its value; comments and blank lines are none."""
    web.page.body = b'# a comment\n\na{b="c d",e="\\"f\\""} 1.5\nb 2e3\n'
    assert scrape(web.port) == [Sample("a", {"b": "c d", "e": '"f"'}, 1.5), Sample("b", {}, 2000.0)]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"<html><body>Not here</body></html>", "metric name"),
        (b"garbage", "garbage"),
        (b"\xff\xfe\x00", "decode"),
        (b'a{b="c"', "could not convert"),
        (b"a -1\n", "is -1"),
        (b'a{b="c"} NaN\n', "is nan"),
        (b"a +Inf\n", "is inf"),
        (b"# TYPE", ""),
        (b"{, =00", "a name is missing"),
    ],
    ids=["html", "word", "bytes", "cut", "negative", "NaN", "infinite", "half a comment", "no name"],
)
def test_a_page_that_makes_no_sense_is_refused(web: Web, body: bytes, found: str) -> None:
    """Nothing is counted from what is no Prometheus text, or holds a value that no counter has."""
    web.page.body = body
    with pytest.raises(ServerFailed, match="are not Prometheus text") as caught:
        scrape(web.port)
    assert f"http://127.0.0.1:{web.port}/metrics" in str(caught.value)
    assert found in caught.value.found
    assert caught.value.found


@settings(deadline=None, max_examples=300)
@given(text=st.text(st.sampled_from('abc_{}",=# \\\n\t01.e+-N\x00é'), max_size=40))
def test_no_page_is_a_crash(text: str) -> None:
    """Any text is samples or a ValueError, which a scrape turns into a refusal."""
    try:
        found = read_samples(text)
    except ValueError:
        return
    assert all(sample.value >= 0 for sample in found)


@pytest.mark.parametrize("status", [204, 302, 404, 500])
def test_another_status_is_refused(web: Web, status: int) -> None:
    """Only 200 counts, whatever the page says, and a body that cannot be read does not hide the status."""
    web.page.status = status
    web.page.body = b"" if status == 204 else TWO_WORKERS.encode() + b"\xff"
    with pytest.raises(ServerFailed, match="could not be read") as caught:
        scrape(web.port)
    assert caught.value.found == f"status {status}"


def test_a_server_that_hangs_up_is_refused(web: Web) -> None:
    """A connection closed without an answer is named."""
    web.page.close_early = True
    with pytest.raises(ServerFailed, match="could not be read") as caught:
        scrape(web.port)
    assert caught.value.found


def test_no_server_is_refused() -> None:
    """A refused connection says so, with the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ServerFailed, match=rf"127\.0\.0\.1:{port}/metrics") as caught:
        scrape(port)
    assert "refused" in caught.value.found
