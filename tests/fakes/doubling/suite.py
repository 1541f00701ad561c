"""The same small suite over all kinds of servers; run by tests/servers/test_all_kinds.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pytest_gpuserve.servers.metric_names import MetricNames

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.comparison.assertions import Run
    from pytest_gpuserve.experiment.handle import ServerHandle, Target

    Make = Callable[..., ServerHandle]

HERE = Path(os.environ["DOUBLING_FOLDER"])
MOSEC = MetricNames(batch_size="mosec_service_batch_size", requests="mosec_service_throughput")
ONE = np.array([[21]], dtype=np.float32)


@pytest.fixture(scope="module")
def targets(  # noqa: PLR0917 -- fixtures have names
    mosec_server: Make,
    litserve_server: Make,
    pytriton_server: Make,
    triton_server: Make,
    torch_worker: Make,
    command_server: Make,
) -> dict[str, Target]:
    """A request to each kind, with what it has to answer."""

    def env(kind: str) -> dict[str, str]:
        return {
            "DOUBLING_COUNTS": str(Path.cwd() / f"counts-{kind}"),
            "DOUBLING_FOLDER": str(HERE),
            "PYTHONPATH": str(HERE),
        }

    mosec = mosec_server(HERE / "mosec_app.py", env=env("mosec"))
    litserve = litserve_server(HERE / "litserve_app.py", env=env("litserve"))
    pytriton = pytriton_server(HERE / "pytriton_app.py", model="doubling", env=env("pytriton"))
    triton = triton_server(HERE / "models", env=env("triton"))
    worker = torch_worker(
        f"{HERE}/torch_model.py:Doubling", max_batch_size=8, max_wait_ms=2.0, env=env("torch"), start_timeout=300
    )
    command = command_server(
        [
            "{python}",
            "mosec_app.py",
            "--address=127.0.0.1",
            "--port={port}",
            "--path={folder}/mosec",
            "--namespace=mosec_service",
        ],
        cwd=HERE,
        counters=MOSEC,
        env=env("command"),
    )
    return {
        "mosec": mosec.post("/inference", body=b"21", expect=b"42"),
        "litserve": litserve.post(
            "/predict",
            body=json.dumps({"input": 21}),
            headers={"Content-Type": "application/json"},
            expect=lambda body: json.loads(body) == {"output": 42},
        ),
        "pytriton": pytriton.infer({"x": ONE}, expect={"y": 2 * ONE}, shared_memory={"y": 4}),
        "triton": triton.infer({"x": ONE}, expect={"y": 2 * ONE}),
        "torch": worker.infer({"x": ONE}, expect={"output": 2 * ONE}),
        "command": command.post("/inference", body=b"21", expect=b"42"),
    }


@pytest.mark.parametrize("kind", ["mosec", "litserve", "pytriton", "triton", "torch", "command"])
def test_doubling(targets: dict[str, Target], load: Callable[..., Run], kind: str) -> None:
    """Twelve users of batches of eight at most."""
    run = load(targets[kind], concurrency=12, seconds=2, warmup_seconds=0.5, check="all")
    assert run.batching_ratio >= 2
    assert run.throughput >= 1
