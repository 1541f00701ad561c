"""The deployment of all tests of this suite: the published ensemble in a real Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.needs import needs_triton

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpuserve.device import Device
    from pytest_gpuserve.experiment.handle import ServerHandle


@pytest.fixture(scope="session")
def size(device: Device) -> str:
    """Size of the model: a small one for a CPU."""
    return "full" if device.is_gpu else "small"


@pytest.fixture(scope="session")
def codegen(triton_server: Callable[..., ServerHandle], size: str) -> ServerHandle:
    """The ensemble of three models; their size is a variable, and so a part of the workload."""
    needs_triton()
    # A full model has to be drawn, and moved to the GPU, before it answers.
    return triton_server("apps/models", env={"CODEGEN_SIZE": size}, start_timeout=180.0)


@pytest.fixture(scope="session")
def tables(artifacts: Path) -> Path:
    """The folder of this suite's tables."""
    return artifacts / "codegen"
