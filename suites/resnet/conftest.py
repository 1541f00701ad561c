"""Fixtures of this suite: sizes, deployments, requests with their right answers, and the table."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="the model needs torch")

from pytest_gpuserve.load.kserve import close_to
from suites.needs import needs_cpp_compiler
from suites.resnet.reference import FULL, SMALL, Size, build, images, scores
from suites.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_gpuserve.device import Device
    from pytest_gpuserve.experiment.handle import ServerHandle, Target
    from suites.resnet.apps.resnet import ResNet


MODEL = "apps/resnet.py:resnet18"

WEIGHTS_SEED = 1
"""Seed of the weights in the file; a worker that did not read it would have those of seed 0."""

EXACT = 1e-4
"""Tolerance of scores against the direct call's, because other kernels sum in another order."""

ROUNDED = 5e-2
"""Tolerance on a GPU that rounds factors to TF32. Scores are of the order of 1, those of two images further apart."""

INDUCTOR = "inductor"
"""Default backend of ``torch.compile``, and the only one of this suite that calls a compiler."""

LARGE_BATCH = 64
"""Batch size from which a request has tens of MB at the published size, so that fewer different ones are made."""


@pytest.fixture(scope="session")
def size(device: Device) -> Size:
    """Size of the model and its images: a small one for a CPU."""
    return FULL if device.is_gpu else SMALL


@pytest.fixture(scope="session")
def model(size: Size) -> ResNet:
    """The model that workers build by themselves, for direct calls."""
    return build(size)


@pytest.fixture(scope="session")
def other_model(size: Size) -> ResNet:
    """The model with the weights of `weights`."""
    return build(size, seed=WEIGHTS_SEED)


@pytest.fixture(scope="session")
def weights(other_model: ResNet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state dict in the form of a checkpoint."""
    import torch  # noqa: PLC0415 -- only where weights are read

    path = tmp_path_factory.mktemp("weights") / "resnet18.pt"
    torch.save(other_model.state_dict(), path)
    return path


@pytest.fixture(scope="session")
def worker(torch_worker: Callable[..., ServerHandle], device: Device, size: Size) -> Callable[..., ServerHandle]:
    """Maker of deployments; takes ``torch_worker``'s arguments, and whether convolutions may be rounded (``tf32``)."""

    def make(*, tf32: bool = True, env: dict[str, str] | None = None, **arguments: Any) -> ServerHandle:  # noqa: ANN401 -- torch_worker's
        # A core for the model, and one for the client and the system.
        threads = {} if device.is_gpu else {"OMP_NUM_THREADS": "1"}
        server = torch_worker(
            MODEL,
            args={"width": size.width, "tf32": tf32},
            env={**threads, **(env or {})},
            **arguments,
        )
        # Last, so that invalid arguments are refused even without a compiler.
        if arguments.get("compile") and arguments.get("compile_backend") in {None, INDUCTOR} and not device.is_gpu:
            needs_cpp_compiler()
        return server

    return make


@pytest.fixture(scope="session")
def requests_to(device: Device, size: Size, model: ResNet) -> Callable[..., Target]:
    """Maker of requests of a batch size to a worker: several in turn, each with its own right scores."""

    def make(server: ServerHandle, batch: int, *, by: ResNet = model, exact: bool = False) -> Target:
        tolerance = EXACT if exact or not device.is_gpu else ROUNDED
        # Relative errors of scores near 0 have no meaning.
        close = partial(close_to, rtol=tolerance, atol=tolerance)
        targets = []
        for seed in range(2 if batch >= LARGE_BATCH else 4):
            noise = images(size, batch, seed=seed)
            targets.append(server.infer({"images": noise}, expect=close({"output": scores(by, noise)})))
        return server.rotate(targets)

    return make


@pytest.fixture(scope="session")
def table(artifacts: Path) -> Iterator[Sweep]:
    """The rows of all experiments of this run, by name; left as ``resnet/repetitions.csv`` under the artifacts."""
    sweep = Sweep(artifacts / "resnet" / "repetitions.csv")
    yield sweep
    sweep.save("experiment", "compile", "batch")
