"""Known causes of failed starts are named before any other remedy."""

from __future__ import annotations

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.servers.instance import GPU_SETTINGS, likely_cause, with_likely_cause
from pytest_gpuserve.servers.litserve import LitServe
from pytest_gpuserve.servers.mosec import Mosec
from pytest_gpuserve.servers.pytriton import PyTriton
from pytest_gpuserve.servers.torch_worker import TorchWorker
from pytest_gpuserve.servers.triton import Triton


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file", "libpython"),
        ("AttributeError: module 're' has no attribute '_recursion_count'", "libpython"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "GPU's memory"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "machine's memory"),
        ("OSError: [Errno 28] No space left on device", "/dev/shm"),
        ("OSError: [Errno 98] Address already in use", "port"),
        ("OSError: [Errno 24] Too many open files", "ulimit -n"),
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
