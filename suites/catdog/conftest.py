"""Fixtures of both test files of this suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.device import Device


@pytest.fixture(scope="session")
def size(device: Device) -> str:
    """Size of the model: a small one for a CPU."""
    return "tiny" if device.is_gpu else "small"


@pytest.fixture(scope="session")
def accelerator(device: Device) -> str:
    """Device of the model."""
    return "cuda" if device.is_gpu else "cpu"


@pytest.fixture(scope="session")
def folder(artifacts: Path) -> Path:
    """Folder of this suite's tables and charts."""
    return artifacts / "catdog"


@pytest.fixture(scope="session")
def model_rates() -> dict[tuple[str, int], float]:
    """Pictures a second of the model by itself, by precision and batch size, as far as measured in this run."""
    return {}
