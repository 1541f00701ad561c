"""Servers with bad habits: each start ends with the right words, and with nothing left behind."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import pytest_gpuserve.servers.instance as instance_module
from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.experiment.handle import Target
from pytest_gpuserve.experiment.single_request import Refused
from pytest_gpuserve.process.logs import SHOWN_CHARACTERS
from pytest_gpuserve.process.ready import Ask, http_probe
from pytest_gpuserve.servers.command import CommandServer
from pytest_gpuserve.servers.instance import GPU_SETTINGS, Readiness, likely_cause, with_likely_cause
from pytest_gpuserve.servers.litserve import LitServe
from pytest_gpuserve.servers.metric_names import MetricNames
from pytest_gpuserve.servers.mosec import Mosec
from pytest_gpuserve.servers.pytriton import PyTriton
from pytest_gpuserve.servers.torch_worker import TorchWorker
from pytest_gpuserve.servers.triton import Triton
from pytest_gpuserve.servers.triton_api import query_triton, read_configs
from pytest_gpuserve.units import Deadline
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from tests.fakes.children.toolkit import HERE, segments_of
from tests.servers.deployments import COUNTERS, Starts, loaded, pages, running
from tests.support.builders import said

SECRETS = ("hf_abcdefghijkl", "mnopqrstuvwxyz")


@pytest.fixture
def starts(tmp_path: Path) -> Starts:
    """Starts the servers of a test."""
    return Starts(tmp_path / "log", timeout_seconds=30.0)


@pytest.fixture
def make(starts: Starts, tmp_path: Path) -> Callable[..., Target]:
    """A request to a server with these habits."""

    def target(*habits: str, counters: MetricNames | None = None) -> Target:
        argv = ("{python}", str(HERE / "model_server.py"), "{port}", *habits)
        environment = {"SOME_TOKEN": SECRETS[0]}
        kind = CommandServer(
            argv, tmp_path, "here", sys.executable, health="/health", counters=counters, environment=environment
        )
        headers = {"Authorization": f"Bearer {SECRETS[1]}"}
        return starts.handle(kind).post("/infer", body=b"fox", expect=b"FOX", headers=headers)

    return target


@pytest.fixture(autouse=True)
def clean(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that leaves a temporary folder."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield
    assert not list(folder.iterdir())


def failure(target: Target) -> ServerFailed:
    """The failure of its start."""
    with pytest.raises(ServerFailed) as caught, target.started():
        pytest.fail("it started")
    return caught.value


def test_a_server_that_never_is_ready_is_given_up(make: Callable[..., Target], starts: Starts) -> None:
    """At the deadline the error has the model's last answer and how to allow more; health is not enough."""
    starts.timeout_seconds = 2.0
    for habit in ("never", "hollow=1"):
        problem = failure(make(habit))
        assert "<SOME_TOKEN> Bearer <Authorization>" in problem.found
        assert not any(secret in str(problem) for secret in SECRETS)
        assert "was not ready in 2.00 s" in problem.summary
        assert "/infer answered status 503, body b'no worker" in problem.found
        assert "start_timeout=4" in str(problem)


def test_health_is_no_answer(make: Callable[..., Target]) -> None:
    """A server that says 200 while its model fails is found out under load, and its secrets are masked."""
    _, problems, _ = loaded(make("hollow=50"))
    assert any("status 503" in text and "<SOME_TOKEN> Bearer <Authorization>" in text for text in said(problems))
    assert not any(secret in text for secret in SECRETS for text in said(problems))


def test_a_program_is_found_in_its_own_folder(make: Callable[..., Target], starts: Starts, tmp_path: Path) -> None:
    """A relative program is one of the working folder, and ten megabytes of output before it listens do not block it.

    A server that ignores SIGTERM is killed, and so are workers that have left its session.
    """
    (tmp_path / "server").symlink_to(sys.executable)
    kind = make("chatter=10", "immortal", "breed").server.kind
    assert isinstance(kind, CommandServer)
    with starts.handle(replace(kind, argv=("./server", *kind.argv[1:]))).post("/infer").started() as instance:
        assert instance.process is not None
        assert instance.process.command.argv[0] == "./server"
        assert instance.process.command.log.stat().st_size > 10_000_000
        family = instance.process.tree()
        assert len(family) == 3
    assert not running(family)


def test_a_model_that_only_fails_is_not_waited_for(make: Callable[..., Target], starts: Starts) -> None:
    """A server that is up and answers 500 for a twelfth of its start timeout is broken; its answer has no secret."""
    starts.timeout_seconds = 24.0
    began = time.monotonic()
    problem = failure(make("broken"))
    assert time.monotonic() - began < 20.0
    assert "its model fails at POST /infer" in problem.summary
    assert "start_timeout=48" in str(problem)
    assert "ValueError: <SOME_TOKEN> Bearer <Authorization>" in problem.found
    assert not any(secret in str(problem) for secret in SECRETS)


def test_a_redirect_is_told_with_its_place(make: Callable[..., Target]) -> None:
    """A load does not follow a redirect: the error says that the test has to name that path."""
    problem = failure(make("moved=/v2/infer/"))
    assert "status 307, it redirects to /v2/infer/" in problem.found
    assert "name /v2/infer/ in the test" in str(problem)


@pytest.mark.parametrize(("code", "advice"), [(0, "keep the server in the foreground"), (1, "run it by hand")])
def test_a_server_that_exits_is_not_waited_for(
    make: Callable[..., Target], starts: Starts, code: int, advice: str
) -> None:
    """With any exit code the wait ends at once, and the error has the server's last words and advice."""
    starts.timeout_seconds = 1000.0
    problem = failure(make(f"exit={code}", "says=ModuleNotFoundError: No module named 'modell'"))
    assert "ended before it was ready" in problem.summary
    assert f"code {code}" in problem.found
    assert "likely cause: a package is missing" in problem.remedies[0]
    assert "modell" in problem.log_tail
    assert advice in str(problem)
    assert str(starts.log) in str(problem)


def only_death(problems: list[Reason]) -> bool:
    """Say whether the server's death is the only problem."""
    (problem,) = problems
    return problem.kind is ReasonKind.SERVER_FAILED and "SIGKILL" in problem.text


def test_a_server_that_dies_under_load_is_told(make: Callable[..., Target]) -> None:
    """The death is the only problem: neither connections that it reset nor counters that cannot be read are told."""
    assert only_death(loaded(make("die=50"))[1])
    assert only_death(loaded(make("die=5", counters=COUNTERS))[1])


def test_a_port_that_is_not_its_own_or_the_worlds_is_refused(
    make: Callable[..., Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that other machines reach is refused, and a foreign server's answers are never taken for ours."""
    problem = failure(make("wide"))
    assert "can be reached from other machines" in problem.summary
    assert "0.0.0.0" in problem.found
    assert "127.0.0.1" in problem.remedies[0]
    with make().started() as other:
        monkeypatch.setattr(instance_module, "claimed_ports", lambda count: nullcontext([other.site.port] * count))
        problem = failure(make())
    assert "a foreign server answers on port" in problem.summary
    assert "model_server.py" in problem.found


def test_a_request_that_is_not_answered(make: Callable[..., Target]) -> None:
    """A dead server is told with its last words; a refusal is told without the secrets that it repeats."""
    # The first request is that of the start.
    target = make("die=2", "says=about to load the weights")
    with target.started() as instance, pytest.raises(ServerFailed, match="does not answer POST /infer") as caught:
        target.ask(instance)
    assert caught.value.found == "it has ended: killed by SIGKILL"
    assert "about to load the weights" in caught.value.log_tail
    target = make("hollow=2")
    with target.started() as instance, pytest.raises(Refused, match="status 503: no worker") as refused:
        target.ask(instance)
    assert "<SOME_TOKEN> Bearer <Authorization>" in str(refused.value)
    assert not any(secret in str(refused.value) for secret in SECRETS)
    assert refused.value.status == 503


@pytest.mark.parametrize("count", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_many_starts_in_a_row_leave_nothing(make: Callable[..., Target], count: int) -> None:
    """No process, socket, shared memory, folder or file descriptor is left by any of them."""
    target = make("segment")
    with target.started():
        pass
    own = psutil.Process()
    descriptors, connections, threads = own.num_fds(), len(own.net_connections()), threading.active_count()
    for _ in range(count):
        with target.started() as instance:
            assert instance.process is not None
            (segment,) = segments_of(instance.process.tree())
        assert not segment.exists()
    assert own.num_fds() <= descriptors
    assert len(own.net_connections()) <= connections
    assert threading.active_count() <= threads


# -- what is said of any server


def test_an_answer_is_told_without_the_secrets_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a remote server and for Triton's API: of an error, text, or JSON that is not a list of models."""
    monkeypatch.setenv("HF_TOKEN", SECRETS[0])
    # Across the end of what is shown; tests/process has all its places.
    text = b"x" * (SHOWN_CHARACTERS - 5) + SECRETS[0].encode() + b" and more"
    remote = Readiness("remote", Ask("POST", "/inference", b"", {}), None, 1.0)
    with pages() as page:
        asks: list[tuple[int, bytes, Callable[[], object]]] = [
            (500, text, lambda: query_triton(page.site(), "/v2", object)),
            (200, text, lambda: query_triton(page.site(), "/v2", object)),
            (200, b'["%s"]' % text, lambda: read_configs(page.site())),
            (0, b"", lambda: remote.accept(404, text, "")),
        ]
        for page.status, page.body, ask in asks:
            with pytest.raises(ServerFailed) as caught:
                ask()
            assert "hf_" not in str(caught.value)
        page.status, page.body = 503, text
        seen = http_probe("127.0.0.1", page.port, Ask("GET", "/"), deadline=Deadline.after(30.0))()
        assert seen is not None
        assert "hf_" not in seen


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file", "libpython"),
        ("error while loading shared libraries: /a/libpython3.11.so.1.0: file too short", "libpython"),
        ("AttributeError: module 're' has no attribute '_recursion_count'", "libpython"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "GPU's memory"),
        ("AssertionError: Torch not compiled with CUDA enabled", "finds no such GPU"),
        ("RuntimeError: CUDA error: invalid device ordinal", "finds no such GPU"),
        ("RuntimeError: Found no NVIDIA driver on your system.", "finds no such GPU"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "machine's memory"),
        ("OSError: [Errno 28] No space left on device", "/dev/shm"),
        ("OSError: [Errno 98] Address already in use", "port"),
        ("OSError: [Errno 24] Too many open files", "ulimit -n"),
        ("RuntimeError: can't start new thread", "ulimit -u"),
        ("OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 64", "ulimit -u"),
        ("OSError: AF_UNIX path too long", "TMPDIR=/tmp"),
        ("E1122 failed to load model 'resnet': ...", "model's file"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'weights/resnet.pth'", "model's file"),
        ("RuntimeError: in get_config_from_handshake_server", "on a busy machine"),
        ("unable to find backend library for backend 'onnxruntime', try specifying runtime", "no such backend"),
        ("ModuleNotFoundError: No module named 'transformers'", "package is missing"),
        ("/venv/bin/python3.11: No module named uvicorn", "package is missing"),
        ("failed to load 'm': ModuleNotFoundError: No module named 'transformers'", "package is missing"),
        ("A module that was compiled using NumPy 1.x cannot be run in NumPy 2.1.0", "numpy below 2"),
        ("PermissionError: [Errno 13] Permission denied: '/models'", "not readable"),
    ],
)
def test_a_known_cause_is_named(log: str, words: str) -> None:
    """A line of the log names the cause, whatever surrounds it; a log without a known line has none."""
    around = "listening on port 8000\nTraceback\nValueError: 42\nloaded model resnet\n#3 pthread_create@@GLIBC_2.2\n"
    # Triton's warning on a machine whose GPUs are hidden.
    around += "pinned memory pool will not be available: no CUDA-capable device is detected"
    assert words in likely_cause(f"{around}\n{log}\nbye")
    assert likely_cause(around) == ""


def test_the_cause_comes_first() -> None:
    """The cause precedes the general advice, and is told once."""
    problem = ServerFailed("it ended", remedies=["read its log"], log_tail="CUDA out of memory")
    assert [line.partition(";")[0] for line in with_likely_cause(with_likely_cause(problem)).remedies] == [
        "likely cause: the GPU's memory is full",
        "read its log",
    ]


def test_each_kind_has_its_setting_for_the_gpu() -> None:
    """Every kind names the setting to check if its server does not use the GPU."""
    assert {kind.name for kind in (LitServe, Mosec, PyTriton, TorchWorker, Triton)} == set(GPU_SETTINGS)
