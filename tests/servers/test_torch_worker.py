"""Real torch workers: their answers, their counters under a real load, their cold start, and their end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import pytest

from pytest_gpuserve.device.gpu import list_gpus
from pytest_gpuserve.device.sampler import SamplerProcess
from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.experiment.telemetry import RELEASE_NS
from pytest_gpuserve.load.__main__ import run_load
from pytest_gpuserve.load.kserve import Inference, decode_answer, http_request, tensors_of
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.load.wire import Endpoint, Plan
from pytest_gpuserve.measure.conditions import memory_reasons
from pytest_gpuserve.measure.counters import counted_between, differences
from pytest_gpuserve.measure.window import COMPILING
from pytest_gpuserve.process.ready import Ask
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.instance import Instance
from pytest_gpuserve.servers.torch_worker import TorchWorker
from tests.fakes.children.toolkit import eventually
from tests.servers.deployments import Starts, answered, counted
from tests.servers.deployments import running as running_of

torch = pytest.importorskip("torch")

MODELS = Path(__file__).parents[1] / "fakes" / "torch_models.py"
GUARD_SECONDS = 60.0
START_SECONDS = 120.0


def body(outputs: tuple[str, ...] = (), **tensors: object) -> Request:
    """A request with these inputs, in this order; its model is that of the worker that gets it."""
    return http_request(Inference("m", tensors_of("input", tensors), outputs))


def path_of(worker: TorchWorker) -> str:
    """Where its requests go."""
    return f"/v2/models/{worker.default_model}/infer"


def asked(worker: Instance, request: Request) -> tuple[int, bytes]:
    """The status and the body of the worker's answer."""
    assert isinstance(worker.kind, TorchWorker)
    return answered(worker, replace(request, path=path_of(worker.kind)))


def ask(worker: Instance, request: Request) -> dict[str, Any]:
    """The worker's answer, which is a good one."""
    status, answer = asked(worker, request)
    assert status == HTTPStatus.OK, answer
    return decode_answer(answer)


def kind(name: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> TorchWorker:  # noqa: ANN401
    """A worker with one of the fake models."""
    app = App("torch_worker", MODELS, "tests/fakes/torch_models.py", arguments=arguments or {})
    return TorchWorker(app, name, **more)


def running(worker: TorchWorker, first: Request, log: Path) -> AbstractContextManager[Instance]:
    """A started worker."""
    return Starts(log, START_SECONDS).start(worker, Ask("POST", path_of(worker), first.body, first.headers))


def load(worker: Instance, request: Request, users: int, seconds: float) -> int:
    """Load it with the real engine; returns the good answers, and there is nothing else."""
    assert isinstance(worker.kind, TorchWorker)
    endpoint, timeout_ns = Endpoint("http", worker.site.host, worker.site.port), round(GUARD_SECONDS * 1e9)
    payload = replace(request, path=path_of(worker.kind)).to_bytes(endpoint.authority)
    plan = Plan(endpoint, ((payload,),), Closed(users), 10**8, timeout_ns, nanoseconds=round(seconds * 1e9))
    totals = run_load(plan).totals
    assert not totals.errors
    return totals.requests


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the workers' output goes."""
    return tmp_path_factory.mktemp("torch")


ROW = body(x=np.arange(3, dtype="f4")[None])


@pytest.fixture(scope="module")
def doubling(logs: Path) -> Iterator[Instance]:
    """A model of known time that counts its executions itself, with batching."""
    worker = kind("doubling", {"seconds": 0.004}, max_batch_size=8, max_wait_ms=3.0)
    with running(worker, ROW, logs / "doubling.log") as instance:
        yield instance


@dataclass(frozen=True)
class Weights:
    """A state dict, a request for images, and the scores that its model gives when it is called directly."""

    path: Path
    images: Any
    scores: Any

    def worker(self, name: str = "scores", **more: Any) -> TorchWorker:  # noqa: ANN401 -- a worker's
        """A worker with it."""
        return kind(name, {"classes": 6}, weights=self.path, **more)

    @property
    def request(self) -> Request:
        """For the scores of all images."""
        return body(x=self.images)

    def check(self, instance: Instance, tolerance: float = 1e-4) -> None:
        """Fail where a worker gives other scores."""
        assert np.allclose(ask(instance, self.request)["output"], self.scores, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def weights(logs: Path) -> Weights:
    """They, of a small model."""
    from tests.fakes.torch_models import scores

    torch.manual_seed(3)
    model = scores(classes=6).eval()
    torch.save(model.state_dict(), logs / "small.pth")
    images = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        return Weights(logs / "small.pth", images.numpy(), model(images).numpy())


def test_how_it_started_and_is_set_up(doubling: Instance) -> None:
    """Parts of the cold start are told apart and add up to less than the whole; what was asked for is what runs."""
    parts = doubling.cold_start_parts
    assert list(parts) == ["import torch", "build model", "load weights", "first request"]
    assert all(seconds > 0 for seconds in parts.values())
    assert parts["first request"] > 0.004
    assert doubling.cold_start_seconds is not None
    assert sum(parts.values()) < doubling.cold_start_seconds
    assert differences(doubling.settings) == []
    used = [doubling.settings[name].used for name in ("compile", "precision", "max_batch_size")]
    assert used == ["False", "no parameters", "8"]
    assert COMPILING not in counted(doubling).stages
    assert doubling.settings["torch"].used == torch.__version__


def test_each_gets_its_own_answer(doubling: Instance) -> None:
    """Requests of several shapes and sizes at the same time; one that is larger than a batch is executed alone."""

    def one(number: int) -> int:
        rows, width = 1 + number % 3, 1 + number % 2
        x = np.full((rows, width), number, "f4")
        answer = ask(doubling, body(x=x))
        assert np.array_equal(answer["doubled"], 2 * x)
        return int(answer["counts"][0][2])

    with ThreadPoolExecutor(16) as pool:
        assert max(pool.map(one, range(96))) > 3
    before = counted(doubling)
    answer = ask(doubling, body(x=np.ones((20, 1), "f4")))
    assert answer["counts"][0][2] == 20
    assert counted_between(before, counted(doubling)).batch_sizes == {"20": 1}


def test_bad_requests_are_answered_and_it_goes_on(doubling: Instance) -> None:
    """Garbage, an unknown output and what the model itself raises are error answers, counted as no good ones."""
    before, one = counted(doubling), np.ones((1, 1), "f4")
    for status, request, words in (
        (HTTPStatus.BAD_REQUEST, replace(ROW, body=b"\0garbage", headers={}), "not a request of KServe v2"),
        (HTTPStatus.BAD_REQUEST, body(("tripled",), x=one), "the model has no output 'tripled'"),
        (HTTPStatus.INTERNAL_SERVER_ERROR, body(x=one[0]), "the model raised RuntimeError"),
    ):
        found, answer = asked(doubling, request)
        assert (found, words in json.loads(answer)["error"]) == (status, True)
    assert list(ask(doubling, body(("doubled",), x=one))) == ["doubled"]
    after = counted(doubling)
    assert after.requests == (before.requests or 0) + 1
    # That of the unknown output was executed, too.
    assert after.batches == before.batches + 2


def test_a_compiled_model_from_weights(weights: Weights, logs: Path) -> None:
    """It gives the direct call's scores and is compiled by dynamo's count, which rises when a new shape is compiled.

    It is one of torch's own containers, which their method ``compile()`` leaves as they are. SIGTERM ends it.
    """
    worker = weights.worker(compile=True, compile_backend="aot_eager")
    with running(worker, weights.request, logs / "compiled.log") as instance:
        assert differences(instance.settings) == []
        used = {name: setting.used for name, setting in instance.settings.items()}
        assert (used["compile"], used["compile_backend"]) == ("True", "aot_eager")
        assert (used["compiled graphs"], used["graph breaks"]) == ("1", "0")
        parts = instance.cold_start_parts
        assert list(parts) == ["import torch", "build model", "load weights", "compile call", "first request"]
        assert instance.cold_start_seconds is not None
        assert sum(parts.values()) < instance.cold_start_seconds
        weights.check(instance)
        before = counted(instance)
        assert before.stages[COMPILING].count == 1
        assert before.stages[COMPILING].seconds > 0.5 * parts["first request"]
        # Another batch is another shape.
        ask(instance, body(x=weights.images[:3]))
        assert counted_between(before, counted(instance)).stages[COMPILING].count == 1
        assert instance.process is not None
        os.kill(instance.process.pid, signal.SIGTERM)
        assert "SIGTERM" in (instance.death(grace_seconds=GUARD_SECONDS) or "")
    assert not instance.site.folder.exists()


def test_two_threads_execute_at_the_same_time(logs: Path) -> None:
    """A model in which two executions wait for each other answers with two workers; each request is executed once.

    Then it is killed, which is told, and nothing is left.
    """
    with running(kind("Meeting", workers=2), ROW, logs / "two.log") as instance:
        with ThreadPoolExecutor(4) as pool:
            counts = sorted(int(answer["output"][0][0]) for answer in pool.map(lambda _: ask(instance, ROW), range(8)))
        assert counts == list(range(2, 10))
        assert counted(instance).batch_sizes == {"1": 9}
        assert instance.process is not None
        tree = instance.process.tree()
        os.kill(instance.process.pid, signal.SIGKILL)
        assert "died under load" in (instance.death(grace_seconds=GUARD_SECONDS) or "")
    assert not instance.site.folder.exists()
    assert not running_of(tree)


def test_a_start_that_fails_says_why(logs: Path) -> None:
    """A start that fails ends at once with 1 and the reason as the last words of its log."""
    with pytest.raises(ServerFailed) as problem, running(kind("raising"), ROW, logs / "raising.log"):
        pass
    last = problem.value.log_tail.splitlines()[-1]
    assert last == "torch_worker: the model did not start: LookupError: no such configuration"
    assert "exit code 1" in problem.value.found


def test_a_lost_device_is_not_a_failed_start(logs: Path) -> None:
    """A worker whose device is lost under load ends with the device's error as the last words of its log."""
    with running(kind("on_a_lost_device"), ROW, logs / "lost.log") as instance:
        with suppress(ConnectionError):
            asked(instance, body(x=np.ones(1, "f4")))
        assert "(exit code 1)" in (instance.death(grace_seconds=GUARD_SECONDS) or "")
        assert instance.process is not None
        last = instance.process.tail().splitlines()[-1]
        assert last == "torch_worker: the worker ended under load: RuntimeError: CUDA error: unspecified launch failure"


@pytest.mark.gpu
@pytest.mark.parametrize("how", [{}, {"compile": True}, {"compile": True, "compile_mode": "reduce-overhead"}], ids=str)
def test_on_a_gpu(weights: Weights, logs: Path, how: dict[str, Any]) -> None:
    """On CUDA, eager, compiled and in CUDA graphs, with batching: the scores of the CPU, each batch counted once."""
    needs_cuda()
    worker = weights.worker(device="cuda:0", max_batch_size=4, max_wait_ms=2.0, **how)
    with running(worker, weights.request, logs / "cuda.log") as instance:
        weights.check(instance, tolerance=1e-2)
        assert instance.settings["device"].used == "cuda:0"
        before = counted(instance)
        assert load(instance, body(x=weights.images[:1]), users=8, seconds=1.0) > 0
        if how.get("compile_mode"):
            # Batches of each size had their graphs before the worker was ready.
            assert COMPILING not in counted_between(before, counted(instance)).stages
        weights.check(instance, tolerance=1e-2)
        counters = counted(instance)
        assert sum(int(size) * count for size, count in counters.batch_sizes.items()) == counters.items


@pytest.mark.gpu
def test_two_on_a_gpu(weights: Weights, logs: Path) -> None:
    """Two workers on one GPU, loaded at the same time, both give the scores of the CPU, and their memory back."""
    needs_cuda()
    uuid = list_gpus().gpus[0].uuid
    one = body(x=weights.images[:1])
    with SamplerProcess(uuid, log=logs / "sampler.log") as sampler:
        before = used_bytes(sampler)
        with ExitStack() as stack:
            workers = [
                stack.enter_context(running(weights.worker(device="cuda:0"), weights.request, logs / "both.log"))
                for _ in range(2)
            ]
            with ThreadPoolExecutor(2) as pool:
                assert all(pool.map(lambda worker: load(worker, one, users=4, seconds=2.0), workers))
            for worker in workers:
                weights.check(worker, tolerance=1e-2)
            held = used_bytes(sampler)
        eventually(
            lambda: not memory_reasons(before, used_bytes(sampler)),
            "the memory is given back",
            seconds=RELEASE_NS / 1e9,
        )
    print(f"{before} bytes before, {held} with two workers")  # noqa: T201 -- shown by -rA
    assert held > before


def used_bytes(sampler: SamplerProcess) -> int:
    """Memory in use on the one GPU that is sampled."""
    sampler.wait_until(time.perf_counter_ns())
    used = sampler.samples[-1].memory_bytes
    assert used is not None
    return used


PAIRS = 12
"""Of windows of a second, one with the sampler and one without: as many as show 2 % of a steady server."""


@pytest.mark.gpu
def test_the_sampler_costs_a_server_little(weights: Weights, logs: Path) -> None:
    """A worker answers at least 0.97 times as fast while its GPU is sampled as in the windows between, by turns."""
    needs_cuda()
    uuid, one = list_gpus().gpus[0].uuid, body(x=weights.images[:1])
    worker = weights.worker(device="cuda:0", max_batch_size=4)
    ratios: list[float] = []
    with (
        running(worker, weights.request, logs / "sampled.log") as instance,
        SamplerProcess(uuid, log=logs / "sampler.log") as sampler,
    ):
        load(instance, one, users=8, seconds=2.0)
        for number in range(PAIRS):
            good: dict[int, int] = {}
            order = (signal.SIGSTOP, signal.SIGCONT)
            for what in order if number % 2 else order[::-1]:
                os.kill(sampler.pid, what)
                good[what] = load(instance, one, users=8, seconds=1.0)
            ratios.append(good[signal.SIGCONT] / good[signal.SIGSTOP])
        os.kill(sampler.pid, signal.SIGCONT)
    print(f"with the sampler by without: {', '.join(f'{ratio:.4f}' for ratio in ratios)}")  # noqa: T201 -- shown by -rA
    assert geometric_mean(ratios) > 0.97


def needs_cuda() -> None:
    """Skip a test where torch cannot use a GPU."""
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} sees no GPU")


def test_a_model_that_fails_at_its_first_request_is_a_failed_start(logs: Path) -> None:
    """A start ends at the model's first exception: a second request would only fail again."""
    log = logs / "failing.log"
    with pytest.raises(ServerFailed) as problem, running(kind("doubling"), body(x=np.ones(1, "f4")), log):
        pass
    assert "ended before it was ready" in problem.value.summary
    assert "torch_worker: the model fails at its first request\n" in problem.value.log_tail
    assert "found: RuntimeError: rows of nothing" in problem.value.log_tail
