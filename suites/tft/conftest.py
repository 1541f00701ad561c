"""Fixtures of this suite: deployments, examples, requests, and the right answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.load.kserve import close_to
from suites.needs import needs_triton
from suites.tft.apps.tft.contract import DATASETS, OUTPUT, model_name
from suites.tft.reference import forecasts

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from pytest_gpuserve.device import Device
    from pytest_gpuserve.experiment.handle import ServerHandle, Target
    from pytest_gpuserve.load.kserve import Comparator
    from suites.tft.apps.tft.data import Examples


MODELS = Path(__file__).parent / "apps" / "models"
"""The model repository."""

EXAMPLES = 16
"""Different ones; larger batches repeat them. The published load was one example over and over."""

TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 1e-1}
"""Relative and absolute tolerance of a standardised forecast: for fp32 the effect of another order of additions, else a
few units of the last place after some dozen layers."""


@dataclass(frozen=True)
class Tft:
    """A deployment of one data set's model, with requests to it.

    Args:
        server: The deployment.
        dataset: Its data set.
        precision: Precision of its computation.
        examples: Inputs of its requests.
        answers: The right forecast of each example, standardised.
    """

    server: ServerHandle
    dataset: str
    precision: str
    examples: Examples
    answers: NDArray[np.float32]

    @property
    def model(self) -> str:
        """The model's name in the repository."""
        return model_name(self.dataset)

    def batch(self, size: int, *, shared: bool = False) -> Target:
        """Describe a request of so many examples, whose answer is compared.

        Args:
            size: Of the batch.
            shared: Whether tensors go through system shared memory instead of HTTP.
        """
        return self.server.infer(
            self.examples.batch(size),
            model=self.model,
            expect=self.expect(size),
            shared_memory={OUTPUT.name: size * OUTPUT.bytes} if shared else None,
        )

    def expect(self, size: int) -> Comparator:
        """Make the comparison of the answer to a batch."""
        rows = [row % len(self.answers) for row in range(size)]
        tolerance = TOLERANCE[self.precision]
        return close_to({OUTPUT.name: self.answers[rows]}, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="session")
def network_size(device: Device) -> str:
    """Size of the network: a small one for a CPU."""
    return "full" if device.is_gpu else "small"


@pytest.fixture(scope="session")
def usual_precision(device: Device) -> str:
    """Precision of the computation: on a GPU the published one."""
    return "fp16" if device.is_gpu else "fp32"


@pytest.fixture(scope="session")
def examples() -> dict[str, Examples]:
    """Examples by data set; skips where what the suite needs is not installed."""
    needs_triton()
    from suites.tft.apps.tft.data import synthetic  # noqa: PLC0415 -- after that was looked for

    return {dataset: synthetic(dataset, EXAMPLES) for dataset in DATASETS}


@pytest.fixture(scope="session")
def deploy(
    triton_server: Callable[..., ServerHandle], examples: dict[str, Examples], network_size: str, usual_precision: str
) -> Callable[..., Tft]:
    """Describe a deployment: ``deploy("traffic")``; options of the model as variables: ``TFT_FORMAT="ts-trace"``."""
    answers: dict[str, NDArray[np.float32]] = {}

    def make(dataset: str, **options: str) -> Tft:
        if dataset not in answers:
            answers[dataset] = forecasts(dataset, examples[dataset], size=network_size)
        variables = {"TFT_SIZE": network_size, "TFT_PRECISION": usual_precision, **options}
        server = triton_server(MODELS, models=[model_name(dataset)], env=variables)
        return Tft(server, dataset, variables["TFT_PRECISION"], examples[dataset], answers[dataset])

    return make
