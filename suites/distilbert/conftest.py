"""The two servers, the right answers, and the table of all measurements of this suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.distilbert.modes import expected_modes, modes_of, without_tail
from suites.distilbert.payload import FOX, SENTENCES
from suites.distilbert.printed import bins_of, save_printed
from suites.distilbert.reference import expected_replies
from suites.distilbert.settings import MAX_BATCH_SIZE, MOSEC, PYTRITON
from suites.needs import needs_triton
from suites.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from pytest_gpuserve.compare.assertions import Run
    from pytest_gpuserve.device import Device
    from pytest_gpuserve.experiment.handle import ServerHandle


FINE_BINS = 2_200
"""Number of requests whose histogram, without the slowest ones, still fills each bin of a coarse one."""


@pytest.fixture(scope="session")
def size(device: Device) -> str:
    """Size of the model: a small one for a CPU."""
    return "full" if device.is_gpu else "small"


@pytest.fixture(scope="session")
def replies(size: str) -> list[bytes]:
    """The right answers to all sentences, from the same model in this process."""
    return expected_replies(SENTENCES, size=size)


@pytest.fixture(scope="session")
def label(replies: list[bytes]) -> bytes:
    """The right answer to the published sentence."""
    return replies[SENTENCES.index(FOX)]


@pytest.fixture(scope="session")
def mosec_distilbert(mosec_server: Callable[..., ServerHandle], size: str) -> Callable[..., ServerHandle]:
    """Maker of mosec's deployments."""

    def make(variant: str, *, workers: int) -> ServerHandle:
        return mosec_server("apps/distilbert_mosec.py", inference_workers=workers, size=size, **MOSEC[variant])

    return make


@pytest.fixture(scope="session")
def pytriton_distilbert(pytriton_server: Callable[..., ServerHandle], size: str) -> Callable[..., ServerHandle]:
    """Maker of pytriton's deployments; skips if its server, or the numpy for it, is not installed."""
    needs_triton()

    def make(variant: str) -> ServerHandle:
        return pytriton_server("apps/distilbert_pytriton.py", model="distilbert", size=size, **PYTRITON[variant])

    return make


@pytest.fixture(scope="session")
def sweep(artifacts: Path) -> Generator[Sweep, None, None]:
    """The table of all measurements, saved after the last one."""
    table = Sweep(artifacts / "distilbert" / "serving.csv")
    yield table
    table.save("system", "variant", "workers", "concurrency")


@pytest.fixture
def keep(sweep: Sweep, artifacts: Path, label: bytes) -> Callable[..., None]:
    """Adds a run to the table, and saves it in the published form, unless it is INVALID."""

    def keep_run(run: Run, *, system: str, variant: str, workers: int, concurrency: int) -> None:
        if run.problems:
            return
        modes = modes_of(without_tail(bins_of(run.summary.latency, FINE_BINS)))
        expected = expected_modes(concurrency, MAX_BATCH_SIZE)
        sweep.add(
            run,
            system=system,
            variant=variant,
            workers=workers,
            concurrency=concurrency,
            modes=len(modes),
            first_mode_seconds=modes[0].seconds if modes else None,
            first_mode_share=modes[0].share if modes else None,
            # The expected modes are known only for one process.
            expected_modes=len(expected) if workers == 1 else None,
            expected_first_share=next(iter(expected.values())) if workers == 1 else None,
        )
        name = f"{system}-{variant}-workers{workers}-connections{concurrency}.json"
        save_printed(artifacts / "distilbert" / name, run.summary, reply_bytes=len(label))

    return keep_run
