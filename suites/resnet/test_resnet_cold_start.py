"""Time of a worker from its launch to its first answer, apart from its warm performance.

The published benchmark printed the time of ``m.compile()`` beside that of the first request, called warm-up. But the
call itself only imports, and the first request compiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.load import Burst
from suites.resnet.rows import COMPILE_CALL, FIRST_REQUEST, LOAD, columns
from suites.tolerances import CPU_TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpuserve.compare.assertions import Baseline, Run
    from pytest_gpuserve.experiment.handle import ServerHandle, Target
    from suites.resnet.apps.resnet import ResNet
    from suites.sweep import Sweep

pytestmark = CPU_TOLERANCES

BATCH = 8

NO_CACHE = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
"""Else only the first start of all compiles, and the others find its kernels on the disk."""


@pytest.mark.gpuserve_full
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_cold_start(
    *,
    worker: Callable[..., ServerHandle],
    requests_to: Callable[..., Target],
    weights: Path,
    other_model: ResNet,
    load: Callable[..., Run],
    baseline: Baseline,
    table: Sweep,
    full_size: bool,
    compiled: bool,
) -> None:
    """A start with weights from a file takes as long as in the baseline, and says which part of it took how long."""
    server = worker(compile=compiled, weights=weights, env=NO_CACHE if compiled else None)
    # No more than shows that it is up: this is about starts, and they are all measured.
    few = requests_to(server, BATCH, by=other_model)
    run = load(few, schedule=Burst(requests=4), starts=10 if full_size else 2, warmup_seconds=0.1, timeout=60)
    table.add(run, experiment="cold start", compile=compiled, batch=BATCH, **columns(run, BATCH))

    parts = run.cold_start_parts
    assert {LOAD, FIRST_REQUEST} <= set(parts)
    assert (COMPILE_CALL in parts) is compiled
    if compiled:
        assert parts[FIRST_REQUEST] > run.summary.max
        assert parts[FIRST_REQUEST] > parts[COMPILE_CALL]
    last = run.sessions[-1].starts[-1].cold_start_seconds
    assert last is not None
    assert sum(parts.values()) < last

    assert run.cold_start <= baseline.cold_start
