"""A real Triton by its adapter: it counts what its models count, listens here only, and leaves nothing behind."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.measure.counters import ServerSetting, counted_between
from pytest_gpuserve.measure.window import COMPUTE, OTHER_COMPUTE, QUEUE, SERVER
from pytest_gpuserve.process.ready import Ask
from pytest_gpuserve.servers.triton import Triton
from pytest_gpuserve.servers.triton_api import query_triton, read_configs
from tests.fakes.children.toolkit import eventually
from tests.servers.deployments import Starts
from tests.servers.processes import listening, running
from tests.servers.triton_server import START_SECONDS, triton_python, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psutil

    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.servers.instance import Instance

USERS = 8
REQUESTS_EACH = 9
BAD = -1.0
"""With this in a request, the whole execution fails."""

CORE = '''
import os
import time

import triton_python_backend_utils as pb_utils
from doubling import double


class TritonPythonModel:
    """Doubles, and keeps count of its batches."""

    def execute(self, requests):
        """Take as long for one request as for many."""
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        if any((x < 0).any() for x in inputs):
            raise ValueError("negative")
        with open(os.environ["COUNTS"], "a") as file:
            file.write("%d %d\\n" % (sum(len(x) for x in inputs), len(requests)))
        time.sleep(0.02)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", double(x))]) for x in inputs]
'''

PRE = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Passes on."""

    def execute(self, requests):
        """Answer with what came."""
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]) for x in inputs]
'''

TENSORS = """
input { name: "X" data_type: TYPE_FP32 dims: [-1] }
output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""
CORE_CONFIG = f"""
name: "core" backend: "python" max_batch_size: 8 {TENSORS}
dynamic_batching {{ preferred_batch_size: [4, 8] max_queue_delay_microseconds: 3000 }}
instance_group {{ kind: KIND_CPU count: 2 }}
"""
PRE_CONFIG = f"""
name: "pre" backend: "python" max_batch_size: 8 {TENSORS}
instance_group {{ kind: KIND_CPU count: 1 }}
"""
CHAIN_CONFIG = """
name: "chain" platform: "ensemble" max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [-1] }
output { name: "OUT" data_type: TYPE_FP32 dims: [-1] }
ensemble_scheduling {
  step {
    model_name: "pre" model_version: -1
    input_map { key: "X" value: "IN" } output_map { key: "Y" value: "middle" }
  }
  step {
    model_name: "core" model_version: -1
    input_map { key: "X" value: "middle" } output_map { key: "Y" value: "OUT" }
  }
}
"""


@dataclass(frozen=True)
class Served:
    """A running ensemble, and the file in which its model counts."""

    instance: Instance
    counts: Path

    def load(self, *requests: bytes, users: int = 1) -> tuple[list[int], Counters, list[tuple[int, int]]]:
        """Send these; their statuses, what the server counted, and items and requests of the model's own executions."""
        before, early = self.instance.counters(), len(self.executions())
        assert before is not None
        with ThreadPoolExecutor(users) as pool:
            statuses = list(pool.map(lambda sent: infer(self.instance.site.port, sent)[0], requests))
        found: list[Counters] = []

        def settled() -> bool:
            """It sends an answer before it has counted it."""
            time.sleep(0.05)
            after = self.instance.counters()
            assert after is not None
            found.append(counted_between(before, after))
            return (found[-1].requests or 0) >= statuses.count(200) and found[-1:] == found[-2:-1]

        eventually(settled, "all requests are counted")
        return statuses, found[-1], self.executions()[early:]

    def executions(self) -> list[tuple[int, int]]:
        """Items and requests of each execution so far, by the model itself."""
        lines = self.counts.read_text().splitlines() if self.counts.exists() else []
        return [(int(items), int(requests)) for items, requests in map(str.split, lines)]

    @property
    def tree(self) -> list[psutil.Process]:
        """All processes of the server."""
        assert self.instance.process is not None
        return self.instance.process.tree()


def body(rows: int, value: float = 1.0) -> bytes:
    """A request of so many rows, as JSON."""
    data = [value] * (2 * rows)
    return json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [rows, 2], "data": data}]}).encode()


def infer(port: int, sent: bytes) -> tuple[int, bytes]:
    """Ask once."""
    return asked(port, "POST", "/v2/models/chain/infer", sent)


def asked(port: int, method: str, path: str, sent: bytes | None = None) -> tuple[int, bytes]:
    """Its status and its answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request(method, path, sent)
        with connection.getresponse() as answer:
            return answer.status, answer.read()


def write_chain(folder: Path) -> Path:
    """A repository with the ensemble ``chain`` and a model that cannot be loaded."""
    repository = folder / "models"
    write_model(repository, CORE_CONFIG, {"model.py": CORE})
    write_model(repository, PRE_CONFIG, {"model.py": PRE})
    write_model(repository, CHAIN_CONFIG)
    write_model(
        repository, f'name: "broken" backend: "python" {TENSORS}', {"model.py": "raise RuntimeError('broken')\n"}
    )
    (folder / "library").mkdir()
    (folder / "library" / "doubling.py").write_text("def double(x):\n    return x * 2\n")
    return repository


ASK = Ask("POST", "/v2/models/chain/infer", body(1), {})


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """Run the ensemble."""
    repository = write_chain(folder)
    environment = {"COUNTS": str(folder / "counts"), "PYTHONPATH": str(folder / "library")}
    kind = Triton(repository, "models", models=("chain",), environment=environment, python=triton_python())
    with Starts(folder / "log", START_SECONDS).start(kind, ASK) as instance:
        yield Served(instance, folder / "counts")


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all tests that leave it as it is."""
    with served(tmp_path_factory.mktemp("chain")) as server:
        yield server


def test_it_counts_what_its_model_counts(chain: Served) -> None:
    """Items, executions, batch sizes and requests under load are exactly the model's own; times fit to them.

    What Triton adds once per request is that many times its executions' time, and is not taken for it.
    """
    sent = [body(1 + number % 3) for number in range(USERS * REQUESTS_EACH)]
    statuses, counted, executions = chain.load(*sent, users=USERS)
    assert statuses == [200] * len(sent)
    assert counted.items == sum(items for items, _ in executions)
    assert counted.batches == len(executions) < len(statuses)
    assert counted.batch_sizes == dict(sorted(Counter(str(items) for items, _ in executions).items()))
    assert counted.requests == len(statuses)
    stages = counted.stages
    assert stages[COMPUTE].count == len(executions)
    assert stages[COMPUTE].seconds > 0.02 * len(executions)
    for stage in (SERVER, QUEUE, "request.infer", OTHER_COMPUTE + "pre"):
        assert stages[stage].count == len(statuses)
    together = [requests for _, requests in executions]
    # However long each execution took: a mean of what was together in them, weighted by their times.
    mean = stages["request.infer"].seconds / stages[COMPUTE].seconds
    assert mean > 1.1
    assert min(together) - 1e-6 < mean < max(together) + 1e-6
    assert stages[SERVER].seconds > stages[QUEUE].seconds + stages["request.infer"].seconds


def test_each_model_is_a_part_and_failures_are_in_none(chain: Served) -> None:
    """An ensemble's batches are its requests; of a request whose execution fails the execution alone is counted."""
    _, counted, _ = chain.load(body(3))
    parts = {name: (part.items, part.batches, part.requests) for name, part in counted.parts.items()}
    assert parts == dict.fromkeys(("chain", "core", "pre"), (3, 1, 1))
    assert b"negative" in infer(chain.instance.site.port, body(2, value=BAD))[1]
    statuses, counted, _ = chain.load(body(2, value=BAD), body(1))
    assert statuses == [500, 200]
    assert (counted.items, counted.requests) == (1, 1)
    assert counted.batch_sizes == {"1": 1, "2": 1}


def test_it_listens_on_the_loopback_only(chain: Served) -> None:
    """The whole tree listens on the site's three ports, all of them on this machine's own address."""
    expected = {("127.0.0.1", port) for port in chain.instance.site.ports.values()}
    assert listening(chain.tree, "all") == expected


def test_only_what_is_asked_for_is_loaded(chain: Served) -> None:
    """A broken model beside the ensemble is not even tried; to count it is an error that names what is there."""
    site, kind = chain.instance.site, chain.instance.kind
    assert sorted(read_configs(site)) == ["chain", "core", "pre"]
    assert {"name": "broken"} in query_triton(site, "/v2/repository/index", method="POST")
    assert isinstance(kind, Triton)
    with pytest.raises(
        ServerFailed, match=r"model='broken' is not one of the loaded models\n  found: chain, core, pre"
    ):
        replace(kind, model="broken").read_settings(site)


def test_a_dead_stub_fails_the_asking_not_the_health(tmp_path: Path) -> None:
    """With its model's processes dead Triton calls itself healthy, but asking the model fails; the end leaves nothing.

    That is why readiness asks the model.
    """
    memory = set(Path("/dev/shm").iterdir())
    with served(tmp_path) as server:
        port, folder = server.instance.site.port, server.instance.site.folder
        tree = server.tree
        mine = {file for file in set(Path("/dev/shm").iterdir()) - memory if file.name.startswith(folder.name)}
        assert mine
        stubs = [process for process in tree if "/core/" in " ".join(process.cmdline())]
        assert len(stubs) == 2
        loading = threading.Thread(target=lambda: load_until_failure(port))
        loading.start()
        time.sleep(0.2)
        for stub in stubs:
            stub.kill()
        loading.join()
        status, answer = infer(port, ASK.body)
        assert status == 500
        assert b"is not healthy" in answer
        for path in ("/v2/health/ready", "/v2/models/core/ready"):
            assert asked(port, "GET", path)[0] == 200
    assert not running(tree)
    assert not folder.exists()
    assert not any(file.exists() for file in mine)


def load_until_failure(port: int) -> None:
    """Ask until an answer is bad."""
    deadline = time.monotonic() + 20
    while infer(port, body(1))[0] == 200 and time.monotonic() < deadline:
        pass


def test_a_model_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    """A model that fails at its import fails the start at once, with its own words."""
    kind = Triton(write_chain(tmp_path), "models", models=("broken",), python=triton_python())
    began = time.monotonic()
    with (
        pytest.raises(ServerFailed, match="RuntimeError: broken"),
        Starts(tmp_path / "log", START_SECONDS).start(kind, ASK),
    ):
        pytest.fail("it started")
    assert time.monotonic() - began < START_SECONDS


def test_what_triton_serves_is_served(tmp_path: Path) -> None:
    """Older versions without a file, zeros before a number, empty folders, version policies; settings are read back.

    They are compared with the configuration that ``model_config_name=`` chooses.
    """
    repository = tmp_path / "models"
    write_model(repository, CORE_CONFIG, {"model.py": PRE}, version=10)
    write_model(repository, PRE_CONFIG + "version_policy { specific { versions: [1, 7] } }", {"model.py": PRE})
    write_model(repository, CHAIN_CONFIG)
    for folder in ("core/9", "core/0011", "core/notes", "pre/2", "chain/01"):
        (repository / folder).mkdir()
    (repository / "core" / "configs").mkdir()
    big = CORE_CONFIG.replace("max_batch_size: 8", "max_batch_size: 16").replace("3000", "500")
    (repository / "core" / "configs" / "big.pbtxt").write_text(big)
    kind = Triton(repository, "models", arguments={"model_config_name": "big"}, python=triton_python())
    with Starts(tmp_path / "log", START_SECONDS).start(kind, ASK) as instance:
        settings = dict(instance.settings)
    assert settings.pop("triton").used
    assert settings["core.max_batch_size"] == ServerSetting("16", "16")
    assert settings["core.max_queue_delay_us"] == ServerSetting("500", "500")
    assert all(setting.asked in {None, setting.used} for setting in settings.values())
