"""A torch worker in parts, without torch: what it refuses, its requests, how they become batches, and its counts."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_gpuserve.builds.relocation import Relocation
from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.load.kserve import Inference, decode_answer, http_request
from pytest_gpuserve.measure.counters import ServerSetting, differences
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.base import Site
from pytest_gpuserve.servers.inside.tally import EXECUTION_FIELDS, MAGIC, MOST_SIZES, WORD, Counted, Tally, read_tally
from pytest_gpuserve.servers.inside.torch_http import (
    HEADER_LENGTH,
    ITEM_BYTES,
    MOST_LINE_BYTES,
    BadRequest,
    HttpServer,
    InferenceRequest,
    ModelFailed,
    Tensor,
    read_request,
    write_answer,
)
from pytest_gpuserve.servers.inside.torch_model import Execution
from pytest_gpuserve.servers.inside.torch_service import GraphShapes, RequestQueue, Service, Waiting
from pytest_gpuserve.servers.inside.torch_worker import COUNTED, FACTS_FILE, TALLY_FILE
from pytest_gpuserve.servers.torch_worker import TorchWorker


@pytest.fixture
def app(tmp_path: Path) -> App:
    """An app whose file is not run here."""
    file = tmp_path / "model.py"
    file.write_text("")
    return App("torch_worker", file, "suites/model.py")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site with a folder of its own."""
    folder = tmp_path / "site"
    folder.mkdir()
    return Site(folder, {"http": 8000})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"compile": "False"}, "torch_worker(compile=...) is True or False, not 'False'"),
        ({"compile": 1}, "torch_worker(compile=...) is True or False, not 1"),
        ({"compile": True, "workers": 2}, "torch.compile is not safe in several threads"),
        ({"compile_backend": "eager"}, "compile_backend without compile"),
        ({"compile_mode": "default"}, "compile_mode without compile"),
        ({"workers": 0}, "torch_worker(workers=...) must be a whole number of at least 1, not 0"),
        ({"workers": True}, "torch_worker(workers=...) must be a whole number"),
        ({"max_batch_size": 0}, "torch_worker(max_batch_size=...)"),
        ({"max_wait_ms": -1.0}, "torch_worker(max_wait_ms=...)"),
        ({"max_wait_ms": float("nan")}, "torch_worker(max_wait_ms=...)"),
        ({"seed": -1}, "torch_worker(seed=...)"),
        ({"device": "gpu"}, "torch_worker(device=...) is 'cpu', 'cuda' or 'cuda:N', not 'gpu'"),
        ({"callable": "build()"}, "'build()' is not the name of a callable"),
        ({"weights": Path("nowhere.pth")}, "the weights nowhere.pth do not exist"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(app: App, arguments: dict[str, Any], words: str) -> None:
    """Each wrong argument is named, as is a compile switch that is not a truth value."""
    with pytest.raises(UsageProblem) as problem:
        TorchWorker(app, **{"callable": "build", **arguments})
    assert words in str(problem.value)
    with pytest.raises(UsageProblem, match="no command line"):
        TorchWorker(dataclasses.replace(app, extra=("--hidden=3",)), "build")


def test_workloads_differ_in_what_matters(app: App, tmp_path: Path) -> None:
    """A workload has all arguments that change the measured work, but no GPU's number and no weights' folder."""
    first, second = tmp_path / "a" / "w.pth", tmp_path / "b" / "w.pth"
    for each in (first, second):
        each.parent.mkdir()
        each.touch()

    def workload(app: App = app, name: str = "build", **arguments: Any) -> str:  # noqa: ANN401 -- a worker's
        return json.dumps(dict(TorchWorker(app, name, **arguments).workload()))

    texts = [
        workload(),
        workload(name="other"),
        workload(weights=first),
        workload(compile=True),
        workload(compile=True, compile_backend="eager"),
        workload(compile=True, compile_mode="max-autotune"),
        workload(device="cuda:0"),
        workload(workers=2),
        workload(max_batch_size=2),
        workload(max_wait_ms=2.0),
        workload(seed=1),
        workload(dataclasses.replace(app, arguments={"scale": False})),
        workload(dataclasses.replace(app, arguments={"scale": None})),
    ]
    assert len(set(texts)) == len(texts)
    assert all(str(tmp_path) not in text for text in texts)
    assert workload(device="cuda:1") == workload(device="cuda:0")
    assert workload(weights=second) == workload(weights=first)
    assert TorchWorker(app, "build", weights=second).information()["weights_bytes"] == "0"


def test_the_same_worker_of_another_checkout(app: App, tmp_path: Path) -> None:
    """File, arguments and weights that git tracks move."""
    here, there = tmp_path / "here", tmp_path / "there"
    for top in (here, there):
        top.mkdir()
        (top / "model.py").touch()
        (top / "w.pth").touch()
    app = dataclasses.replace(app, file=here / "model.py", arguments={"data": str(here / "w.pth")})
    kind = TorchWorker(app, "build", weights=here / "w.pth")
    moved = kind.relocated(Relocation(here, there))
    assert (moved.app.file, moved.weights) == (there / "model.py", there / "w.pth")
    assert moved.app.arguments == {"data": str(there / "w.pth")}


@pytest.mark.parametrize(
    ("asked", "frames", "executions", "told"),
    [
        (True, 0, 1, ["compile: asked for True, the server uses False"]),
        (False, 1, 1, ["compile: asked for False, the server uses True"]),
        (True, 2, 1, []),
        (False, 0, 1, []),
        (True, 0, 0, []),
    ],
)
def test_whether_it_is_compiled_is_counted_not_believed(
    app: App, site: Site, frames: int, executions: int, told: list[str], *, asked: bool
) -> None:
    """Dynamo's count stands beside the requested setting, and a difference shows; before an execution it is open."""
    (site.folder / FACTS_FILE).write_text('{"cold_start": {"import torch": 1.5}, "settings": {"torch": "2.9"}}')
    tally = Tally(site.folder / TALLY_FILE, MOST_SIZES, COUNTED)
    for _ in range(executions):
        tally.add(1, executions=1, items=1, frames=frames)
    kind = TorchWorker(app, "build", compile=asked)
    found = kind.read_settings(site)
    assert differences(found) == told
    assert (found["compile"].used is None) == (not executions)
    assert (found["device"], found["torch"]) == (ServerSetting("cpu", "cpu"), ServerSetting("2.9"))
    assert kind.read_cold_start(site) == {"import torch": 1.5}


def test_facts_that_make_no_sense_are_refused(app: App, site: Site) -> None:
    """A worker that does not tell how it started is an error, not a worker without parts."""
    for text in (None, "", "[]", '{"settings": {}}', '{"settings": {"a": 1}, "cold_start": {}}', "\udcff"):
        if text is not None:
            (site.folder / FACTS_FILE).write_text(text, errors="surrogateescape")
        with pytest.raises(ServerFailed, match="did not report its setup"):
            TorchWorker(app, "build").read_cold_start(site)


def test_an_interpreter_without_anything_gets_as_far_as_torch(app: App, site: Site) -> None:
    """The process needs the standard library and torch, and says so where torch is missing."""
    launch = TorchWorker(app, "build").launch(site)
    argv = [sys.executable, "-S", *launch.argv[1:]]
    environment = {"PYTHONPATH": launch.environment["PYTHONPATH"].split(os.pathsep)[0]}
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert ended.stdout == ""
    last = ended.stderr.splitlines()[-1]
    assert last == "torch_worker: the model did not start: ModuleNotFoundError: No module named 'torch'"


# -- requests

utils = pytest.importorskip("tritonclient.utils")

NAMES = st.text(min_size=1, max_size=5)


@st.composite
def tensors(draw: st.DrawFn) -> list[Tensor]:
    """Tensors of one batch, of any datatype, some of them without an element."""
    rows = draw(st.integers(1, 3))
    found = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        datatype = draw(st.sampled_from(sorted(ITEM_BYTES)))
        shape = (rows, *draw(st.lists(st.integers(0, 3), max_size=3)))
        size = math.prod(shape) * ITEM_BYTES[datatype]
        found.append(Tensor(name, datatype, shape, draw(st.binary(min_size=size, max_size=size))))
    return found


@settings(deadline=None)
@given(tensors(), st.text(max_size=5), st.lists(NAMES, max_size=2, unique=True))
def test_a_request_is_read_as_it_was_written(inputs: list[Tensor], request_id: str, outputs: list[str]) -> None:
    """Every request that the client's end writes is read back exactly."""
    arrays = {
        each.name: np.frombuffer(each.data, utils.triton_to_np_dtype(each.datatype)).reshape(each.shape)
        for each in inputs
    }
    request = http_request(Inference("m", arrays, tuple(outputs), request_id=request_id))
    asked = read_request(request.body, int(request.headers[HEADER_LENGTH]))
    assert list(asked.inputs) == inputs
    assert (asked.outputs, asked.request_id, asked.rows) == (tuple(outputs), request_id, inputs[0].shape[0])


@settings(deadline=None)
@given(tensors(), st.text(max_size=5))
def test_an_answer_is_read_as_it_was_written(outputs: list[Tensor], request_id: str) -> None:
    """The client's end reads each output with its name, type, shape and elements; the JSON has the told length."""
    told, *data = write_answer("m", outputs, request_id)
    assert json.loads(bytes(told))["model_name"] == "m"
    answer = decode_answer(b"".join([told, *data]))
    assert list(answer) == [output.name for output in outputs]
    for output in outputs:
        array = answer[output.name]
        assert array.shape == output.shape
        assert array.tobytes() == output.data


def described(size: object = 4, **changes: object) -> dict[str, object]:
    """An input of 4 bytes, changed."""
    whole = {"name": "x", "shape": [1, 4], "datatype": "UINT8", "parameters": {"binary_data_size": size}}
    return {**whole, **changes}


ONE = {"inputs": [described()]}
NO_REQUEST = "not a request of KServe v2"


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        ({}, b"", f"{NO_REQUEST} with tensors as bytes after its JSON: KeyError('inputs')"),
        ({"inputs": []}, b"", "a request needs inputs"),
        ([1], b"", NO_REQUEST),
        (ONE, b"123", "the inputs announce 4 bytes, 3 follow the JSON"),
        (ONE, b"12345", "the inputs announce 4 bytes, 5 follow the JSON"),
        ({"inputs": [7]}, b"", NO_REQUEST),
        ({"inputs": [described(parameters={}, data=[1])]}, b"", "KeyError('binary_data_size')"),
        ({"inputs": [described(-4)]}, b"", "input 'x' of UINT8 [1, 4] takes 4 bytes, not -4"),
        ({"inputs": [described(name=None)]}, b"1234", "input None needs a name"),
        ({"inputs": [described(datatype="BYTES")]}, b"1234", "input 'x' is 'BYTES'; a torch worker takes BOOL"),
        ({"inputs": [described(datatype=[])]}, b"1234", NO_REQUEST),
        ({"inputs": [described(datatype="FP32")]}, b"1234", "input 'x' of FP32 [1, 4] takes 16 bytes, not 4"),
        ({"inputs": [described(shape=[])]}, b"1234", "input 'x' has the shape []; its first dimension is the batch"),
        ({"inputs": [described(shape=7)]}, b"1234", NO_REQUEST),
        ({"inputs": [described(shape=[2, True])]}, b"1234", "input 'x' has the shape [2, True]"),
        ({"inputs": [described(shape=[-1, -4])]}, b"1234", "input 'x' has the shape [-1, -4]"),
        ({"inputs": [described(0, shape=[0])]}, b"", "its first dimension is the batch, 1 or more"),
        ({"inputs": [described(), described()]}, b"12341234", "each with a name of its own"),
        ({"inputs": [described(), described(name="y", shape=[2, 2])]}, b"12341234", "for all inputs: 'x' [1, 4], 'y'"),
        ({**ONE, "outputs": ["y"]}, b"1234", NO_REQUEST),
        ({**ONE, "outputs": [{"name": []}]}, b"1234", "the name of a requested output is not a text: []"),
        (
            {**ONE, "outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]},
            b"1234",
            "output 'y': a torch worker has no shared memory",
        ),
        ({**ONE, "id": []}, b"1234", "the request's id is not a text: []"),
    ],
)
def test_what_is_wrong_is_said(header: object, data: bytes, words: str) -> None:
    """Each refusal names its reason."""
    text = json.dumps(header).encode()
    with pytest.raises(BadRequest) as problem:
        read_request(text + data, len(text))
    assert words in str(problem.value)


@pytest.mark.parametrize("body", [b"", b"GET / HTTP/1.1", b"{", b'{"a":' * 100_000, b"{" + b"\xff" * 10_000])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    """Garbage, depth and length do not end the reader."""
    with pytest.raises(BadRequest, match=NO_REQUEST):
        read_request(body, len(body))


# -- HTTP


def answer_of(body: bytes, json_bytes: int) -> list[bytes]:
    """Answer with what was sent; refuse what begins with an X, and fail at a Y or a Z."""
    problem = {b"X": BadRequest("no"), b"Y": ModelFailed("broken"), b"Z": KeyError(1)}.get(body[:1])
    if problem is not None:
        raise problem
    return [body[:json_bytes], body[json_bytes:]]


@pytest.fixture
def port() -> Iterator[int]:
    """Port of a server of the model ``m``."""
    server = HttpServer(("127.0.0.1", 0), "m", answer_of)
    with server.listener, ThreadPoolExecutor(1) as pool:
        serving = pool.submit(server.serve_forever)
        yield int(server.listener.getsockname()[1])
        server.listener.shutdown(socket.SHUT_RDWR)
        assert isinstance(serving.exception(20), OSError)


def test_a_connection_is_answered_request_by_request(port: int) -> None:
    """Small and large bodies, refusals, failures and unknown paths are answered one after the other."""
    big, path = bytes(3 << 20), "/v2/models/m/infer"
    with closing(HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        for method, at, sent, status, body in [
            ("POST", path, b"fox", 200, b"fox"),
            ("POST", path, big, 200, big),
            ("POST", path, b"X", 400, b'{"error": "no"}'),
            ("POST", path, b"Y", 500, b'{"error": "broken"}'),
            ("POST", path, b"Z", 500, b'{"error": "KeyError(1)"}'),
            ("POST", "/v2/models/other/infer", b"fox", 404, None),
            ("GET", "/", b"", 404, None),
            ("POST", path, b"", 200, b""),
        ]:
            connection.request(method, at, sent, {HEADER_LENGTH: "1"})
            answer = connection.getresponse()
            assert answer.status == status
            assert answer.read() == body or body is None
            assert (answer.headers[HEADER_LENGTH] == "1") == (status == 200 and sent != b"")


def exchanged(port: int, sent: bytes) -> bytes:
    """The answers to the bytes of a client that then ends its side."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answers:
            return answers.read()


GET = b"GET / HTTP/1.1\r\n"
POST = b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 3\r\n"


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (b"\r\n" + GET + b"\r\n" + GET + b"\r\n", [b"404", b"404"]),
        (GET + b"connection: Close\r\n\r\n" + GET + b"\r\n", [b"404"]),
        (GET.replace(b"1.1", b"1.0") + b"\r\n" + GET + b"\r\n", [b"404"]),
        (POST + b"Expect: 100-continue\r\n\r\nfox", [b"100", b"200"]),
        # What looks like a second request is the body of the first.
        (GET + b"Content-Length: %d\r\n\r\n" % len(GET + b"\r\n") + GET + b"\r\n", [b"404"]),
        (POST + b"\r\nfo", []),
        (POST, []),
        (POST.replace(b"3", b"-3") + b"\r\nfox", [b"400"]),
        (b"POST / HTTP/1.1\r\n\r\n", [b"400"]),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", [b"400"]),
        (b"GET /\r\n\r\n", [b"400"]),
        (GET + b"no header\r\n\r\n", [b"400"]),
        (b"\x16\x03\x01\x02\x00\x01", [b"400"]),
    ],
)
def test_how_clients_of_http_may_speak(port: int, sent: bytes, answers: list[bytes]) -> None:
    """Connections are kept or closed as their clients say; a request whose end is unknown is the last one."""
    found = exchanged(port, sent)
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == answers


def test_a_line_without_an_end_is_answered(port: int) -> None:
    """A client that goes on and on is refused while its line still fits the memory."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"G" * MOST_LINE_BYTES)
        assert connection.recv(12) == b"HTTP/1.1 400"


# -- batches

GUARD_SECONDS = 20.0
LONG_NS = round(1e9 * GUARD_SECONDS)


def request(number: int, rows: int, width: int = 1, arrived_ns: int | None = None) -> Waiting:
    """A request of so many rows; it does not fit to requests of another width."""
    tensor = Tensor("x", "UINT8", (rows, width), bytes(rows * width))
    now_ns = time.perf_counter_ns() if arrived_ns is None else arrived_ns
    return Waiting(InferenceRequest((tensor,), request_id=str(number)), now_ns)


def numbers(batch: list[Waiting]) -> list[int]:
    """Numbers of the requests of a batch."""
    return [int(waiting.asked.request_id) for waiting in batch]


@settings(deadline=None)
@given(
    waiting=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 2)), max_size=12),
    max_rows=st.integers(1, 6),
)
def test_every_request_is_in_one_batch_in_order(waiting: list[tuple[int, int]], max_rows: int) -> None:
    """Batches are of one kind, within the limit or a single request, as full as their order allows, oldest first."""
    queue = RequestQueue(max_rows, 0)
    for number, (rows, width) in enumerate(waiting):
        queue.put(request(number, rows, width, arrived_ns=number))
    batches: list[list[Waiting]] = []
    while sum(map(len, batches)) < len(waiting):
        batches.append(queue.take())
    assert sorted(number for batch in batches for number in numbers(batch)) == list(range(len(waiting)))
    for batch in batches:
        assert len({each.asked.inputs[0].shape[1] for each in batch}) == 1
        assert len(batch) == 1 or sum(each.asked.rows for each in batch) <= max_rows
    for width in (1, 2):
        ours = [batch for batch in batches if batch[0].asked.inputs[0].shape[1] == width]
        order = [number for batch in ours for number in numbers(batch)]
        assert order == sorted(order)
        for batch, following in pairwise(ours):
            assert sum(each.asked.rows for each in [*batch, following[0]]) > max_rows


def test_a_full_batch_does_not_wait() -> None:
    """A full batch goes at once, past an older request that still waits; the rest is not full, and waits again."""
    queue = RequestQueue(2, LONG_NS)
    queue.put(request(0, 1, width=9))
    queue.put(request(1, 1))
    with ThreadPoolExecutor() as pool:
        batch = pool.submit(queue.take)
        queue.put(request(2, 1))
        assert numbers(batch.result(GUARD_SECONDS / 2)) == [1, 2]
        for number in range(3, 6):
            queue.put(request(number, 1))
        assert numbers(queue.take()) == [3, 4]
        batch = pool.submit(queue.take)
        time.sleep(0.05)
        assert not batch.done()
        queue.put(request(6, 1))
        assert numbers(batch.result(GUARD_SECONDS / 2)) == [5, 6]


def test_the_oldest_waits_so_long_and_no_longer() -> None:
    """A batch that is not full goes when its oldest request has waited enough since it arrived, not before."""
    queue = RequestQueue(8, 50_000_000)
    first = request(0, 1)
    queue.put(first)
    queue.put(request(1, 1))
    assert numbers(queue.take()) == [0, 1]
    assert time.perf_counter_ns() >= first.arrived_ns + 50_000_000
    # One that waited for the model has waited already.
    slow = RequestQueue(8, LONG_NS)
    slow.put(request(0, 1, arrived_ns=time.perf_counter_ns() - LONG_NS))
    assert numbers(slow.take()) == [0]


# -- CUDA graphs


def test_each_batch_size_has_its_graph_before_the_first_answer() -> None:
    """Sizes from 1 to the largest are executed three times with the request's first row; later requests run none."""
    sizes: list[int] = []
    inputs: set[bytes] = set()

    def execute(requests: list[InferenceRequest]) -> None:
        sizes.append(len(requests))
        inputs.update(bytes(asked.inputs[0].data) for asked in requests)

    graphs = GraphShapes(3)
    asked = InferenceRequest((Tensor("x", "UINT8", (2, 2), b"abcd"),))
    for _ in range(2):
        graphs.record(execute, asked)
    assert (sizes, inputs) == ([1, 1, 1, 2, 2, 2, 3, 3, 3], {b"ab"})
    assert not graphs.is_new([asked])
    # A shape that comes first under load is warmed up and recorded there.
    other = InferenceRequest((Tensor("x", "UINT8", (1, 3), b"abc"),))
    assert [graphs.is_new([other, other]) for _ in range(4)] == [True, True, False, False]
    # Without batching a request is executed as it is.
    GraphShapes(1).record(execute, asked)
    assert (sizes[9:], inputs) == ([1, 1, 1], {b"ab", b"abcd"})


def test_a_worker_records_graphs_before_it_counts(tmp_path: Path) -> None:
    """The first counted execution comes after those for graphs; one of a shape without a graph counts as compiled."""
    sizes: list[int] = []

    def execute(requests: list[InferenceRequest]) -> list[list[Tensor]]:
        sizes.append(len(requests))
        return [[] for _ in requests]

    execution, tally = cast("Execution", execute), Tally(tmp_path / "tally", MOST_SIZES, COUNTED)
    service = Service(
        tally,
        "model",
        [execution],
        max_batch_size=2,
        max_wait_seconds=0.0,
        on_first=lambda _: None,
        graphs=GraphShapes(2),
    )
    for width in (1, 2):
        service._execute(execution, [request(0, 1, width)])
    counted, by_rows = read_tally(tmp_path / "tally", COUNTED)
    assert sizes == [1, 1, 1, 2, 2, 2, 1, 1]
    assert (counted["executions"], counted["compiling"]) == (2, 1)
    assert (counted["executed"], counted["items"], by_rows) == (2, 2, {1: 2})
    assert 0 < counted["compiling_ns"] < counted["compute_ns"]


# -- counts, also of LitServe


def counted(executions: int, items: int, nanoseconds: int, sizes: dict[int, int]) -> Counted:
    """The counts of executions."""
    return Counted(dict(zip(EXECUTION_FIELDS, (executions, items, nanoseconds), strict=True)), sizes)


EXECUTIONS = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 10**12)), max_size=40)


@settings(max_examples=50)
@given(executions=EXECUTIONS)
def test_what_is_added_is_read(executions: list[tuple[int, int]]) -> None:
    """Executions, items, time and sizes are the added ones; sizes beyond the places are in the sums alone."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tally"
        tally = Tally(path, 8)
        for size, nanoseconds in executions:
            tally.executed(size, nanoseconds)
        assert read_tally(path) == counted(
            len(executions),
            sum(size for size, _ in executions),
            sum(nanoseconds for _, nanoseconds in executions),
            dict(sorted(Counter(size for size, _ in executions if size <= 8).items())),
        )


WRITER = """
import sys
from pathlib import Path
from pytest_gpuserve.servers.inside.tally import Tally
tally = Tally(Path(sys.argv[1]), 4)
print(flush=True)
while True:
    tally.executed(3, 7)
    sum(range(300))  # some microseconds, where a batch takes hundreds
"""


def test_an_execution_is_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    """While another process counts faster than any model, numbers always fit together, and rise."""
    path = tmp_path / "a.tally"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            readings = [read_tally(path) for _ in range(400)]
        finally:
            writer.kill()
    seen = [reading.values["executions"] for reading in readings]
    assert readings == [counted(count, 3 * count, 7 * count, {3: count} if count else {}) for count in seen]
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]
    assert read_tally(path).values["executions"] >= seen[-1]


def test_a_writer_that_died_in_the_middle_holds_up_nobody(tmp_path: Path) -> None:
    """A tally whose last change was not finished is read as it is."""
    path = tmp_path / "a.tally"
    Tally(path, 2).executed(2, 5)
    octets = bytearray(path.read_bytes())
    octets[WORD : 2 * WORD] = (3).to_bytes(WORD, sys.byteorder)
    path.write_bytes(octets)
    assert read_tally(path) == counted(1, 2, 5, {2: 1})


@settings(max_examples=50)
@example(MAGIC.to_bytes(WORD, sys.byteorder) + bytes(4 * WORD))
@given(octets=st.binary(max_size=100))
def test_another_file_is_no_tally(octets: bytes) -> None:
    """A file that does not begin and end like a tally is refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tally"
        path.write_bytes(octets)
        with pytest.raises(ServerFailed, match=r"a\.tally"):
            read_tally(path)
