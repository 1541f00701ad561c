"""Errors show a server's answer without the secrets that it may repeat, and name known causes first."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process.logs import SHOWN_CHARACTERS
from pytest_gpuserve.process.ready import Ask, http_probe
from pytest_gpuserve.servers.instance import GPU_SETTINGS, Readiness, likely_cause, with_likely_cause
from pytest_gpuserve.servers.litserve import LitServe
from pytest_gpuserve.servers.metric_names import MetricNames
from pytest_gpuserve.servers.mosec import Mosec
from pytest_gpuserve.servers.pytriton import PyTriton
from pytest_gpuserve.servers.torch_worker import TorchWorker
from pytest_gpuserve.servers.triton import Triton
from pytest_gpuserve.servers.triton_api import query_triton, read_configs
from pytest_gpuserve.units import Deadline
from tests.servers.pages import Pages, pages

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "hf_abcdefghijkl"
HEADERS = {"Authorization": f"Bearer {SECRET}"}
ASKED = Ask("POST", "/inference", b"", HEADERS)
UNHEADED = Ask("POST", "/inference", b"", {})

known_to = pytest.mark.parametrize(
    ("ask", "known"), [(ASKED, {}), (UNHEADED, {"HF_TOKEN": SECRET})], ids=["the request", "the server"]
)
"""The request has the token among its headers, or the server among its variables."""


def answer(most: int) -> bytes:
    """An answer with a secret across the end of a text of so many characters; tests/process has all its places."""
    return b"x" * (most - 5) + SECRET.encode() + b" and more"


@pytest.fixture(scope="module")
def page() -> Iterator[Pages]:
    """A server of one page."""
    with pages() as server:
        yield server


@contextmanager
def unsaid() -> Iterator[None]:
    """A failure whose text has no part of the token."""
    with pytest.raises(ServerFailed) as caught:
        yield
    assert "hf_" not in str(caught.value)


@known_to
def test_a_probe_that_is_not_content_tells_no_secret(page: Pages, ask: Ask, known: dict[str, str]) -> None:
    """A probe shows neither a secret that it sent nor one of the server's variables; a short answer is shown whole."""
    page.status = 503
    process: Any = SimpleNamespace(command=SimpleNamespace(env=known), exit_status=lambda: None)
    request = Ask("GET", "/", b"", ask.headers)
    probe = http_probe("127.0.0.1", page.port, request, deadline=Deadline.after(10.0), process=process)
    page.body = answer(SHOWN_CHARACTERS)
    seen = probe()
    assert seen is not None
    assert "answered status 503" in seen
    assert "hf_" not in seen
    page.body = b"loading\n"
    seen = probe()
    assert seen is not None
    assert seen.endswith(r"body b'loading\n': status 200 is needed")


@known_to
def test_a_status_is_told_without_secrets(ask: Ask, known: dict[str, str]) -> None:
    """Secrets are masked if the model fails or the server refuses; a server that still starts is waited for."""
    process: Any = SimpleNamespace(command=SimpleNamespace(env=known), tail=lambda: "")
    readiness, body = Readiness("mosec", ask, process, 1.0), answer(SHOWN_CHARACTERS)
    assert readiness.accept(503, body, "") == readiness.accept(500, body, "") == "the model does not answer yet"
    readiness.failing[0] -= 1.0
    for status in (500, 404):
        with unsaid():
            readiness.accept(status, body, "")


def test_an_answer_is_told_without_the_secrets_of_this_process(page: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a remote server and for Triton's API the variables of this process are masked.

    The answer may be an error, text, or JSON that is not a list of models.
    """
    monkeypatch.setenv("HF_TOKEN", SECRET)
    page.body = answer(SHOWN_CHARACTERS)
    with unsaid():
        Readiness("remote", UNHEADED, None, 1.0).accept(404, page.body, "")
    for page.status in (500, 200):
        with unsaid():
            query_triton(page.site(), "/v2", object)
    page.body = b'["%s"]' % page.body
    with unsaid():
        read_configs(page.site())


def test_the_names_of_metrics_are_listed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list ends between two names, because half a secret could not be masked."""
    monkeypatch.setenv("A_TOKEN", "metric_0012_of_many")
    names = [f"metric_{number:04}_of_many" for number in range(100)]
    with pytest.raises(ServerFailed) as caught:
        MetricNames(items="items", batches="runs").read("".join(f"{name} 1\n" for name in names))
    listed = caught.value.found.removeprefix("100 metrics: ")
    assert listed.endswith(", …")
    shown = listed.removesuffix(", …").split(", ")
    assert shown == [*names[:12], "<A_TOKEN>", *names[13 : len(shown)]]
    assert 40 < len(shown) < len(names)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file", "libpython"),
        ("AttributeError: module 're' has no attribute '_recursion_count'", "libpython"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "GPU's memory"),
        ("AssertionError: Torch not compiled with CUDA enabled", "finds no such GPU"),
        ("RuntimeError: CUDA error: invalid device ordinal", "finds no such GPU"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "machine's memory"),
        ("OSError: [Errno 28] No space left on device", "/dev/shm"),
        ("OSError: [Errno 98] Address already in use", "port"),
        ("OSError: [Errno 24] Too many open files", "ulimit -n"),
        ("RuntimeError: can't start new thread", "ulimit -u"),
        ("OSError: AF_UNIX path too long", "TMPDIR=/tmp"),
        ("E1122 failed to load model 'resnet': ...", "model's file"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'weights/resnet.pth'", "model's file"),
        ("RuntimeError: in get_config_from_handshake_server", "on a busy machine"),
        ("unable to find backend library for backend 'onnxruntime', try specifying runtime", "no such backend"),
        ("ModuleNotFoundError: No module named 'transformers'", "package is missing"),
        ("A module that was compiled using NumPy 1.x cannot be run in NumPy 2.1.0", "numpy below 2"),
        ("PermissionError: [Errno 13] Permission denied: '/models'", "not readable"),
    ],
)
def test_a_known_cause_is_named(log: str, words: str) -> None:
    """A line of the log names the cause, whatever surrounds it."""
    assert words in likely_cause(f"starting\n{log}\nbye")


@pytest.mark.parametrize("log", ["", "Traceback\nValueError: 42", "listening on port 8000", "loaded model resnet"])
def test_nothing_is_made_up(log: str) -> None:
    """A log without a known line has no cause."""
    assert likely_cause(log) == ""


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
