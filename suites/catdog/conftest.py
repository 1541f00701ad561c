"""What both test files of this suite share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    class Device(Protocol):
        """What this suite asks of the device under test."""

        @property
        def name(self) -> str:
            """Its name, as ``--gpu`` takes it."""

        @property
        def is_gpu(self) -> bool:
            """Whether it is a card, not the CPU."""

        def environment(self) -> dict[str, str]:
            """Variables with which a process can use it and no other card."""


@pytest.fixture(scope="session")
def size(device: Device) -> str:
    """Size of the model, which a CPU has to be spared."""
    return "tiny" if device.is_gpu else "small"


@pytest.fixture(scope="session")
def accelerator(device: Device) -> str:
    """Where the model runs."""
    return "cuda" if device.is_gpu else "cpu"


@pytest.fixture(scope="session")
def folder(artifacts: Path) -> Path:
    """Where this suite leaves tables and charts."""
    return artifacts / "catdog"


@pytest.fixture(scope="session")
def model_rates() -> dict[tuple[str, int], float]:
    """Pictures a second of the model by itself, by precision and batch size, as far as measured in this run."""
    return {}
