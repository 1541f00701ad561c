"""Right answers, each to its request, compiled or not; and refusals.

A worker that dies is a failed run, and a worker leaves no processes, ports or files at its end. These facts do not
depend on this model: tests/servers/test_torch_worker.py shows them with small ones. Workers wait for requests as long
as the test runs. The published worker ended after ten seconds without a request, and spoiled the runs of slow clients.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load import Burst
from suites.resnet.reference import images, write_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpuserve.compare.assertions import Run
    from pytest_gpuserve.experiment.handle import ServerHandle, Target
    from suites.resnet.apps.resnet import ResNet
    from suites.resnet.reference import Size

BATCH = 3
"""None of the other tests': what was compiled for another one does not serve."""

REQUESTS = 24


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(None, marks=pytest.mark.smoke),
        # Dynamo's half of the compilation, without inductor's half minute for kernels.
        pytest.param("aot_eager", marks=pytest.mark.gpuserve_full),
        pytest.param("inductor", marks=pytest.mark.gpuserve_full),
    ],
    ids=["eager", "aot_eager", "inductor"],
)
def test_answers(
    *,
    worker: Callable[..., ServerHandle],
    requests_to: Callable[..., Target],
    weights: Path,
    other_model: ResNet,
    load: Callable[..., Run],
    backend: str | None,
) -> None:
    """All wait at once, four kinds in turn: each gets one answer, its own, the direct call's scores to 1e-4.

    The weights are those of the file, mapped into a model that was built without memory.
    """
    server = worker(compile=backend is not None, compile_backend=backend, weights=weights, tf32=False)
    run = load(
        requests_to(server, BATCH, by=other_model, exact=True),
        schedule=Burst(requests=REQUESTS),
        check="all",
        warmup_seconds=0.1,
        timeout=60,
    )
    assert run.settings["compile"].used == str(backend is not None)
    asked = REQUESTS * run.loads
    assert (run.summary.requests, run.summary.error_count) == (asked, 0)
    assert (run.counters.requests, run.counters.batches) == (asked, asked)
    assert run.counters.items == BATCH * asked
    # With those of the warm-up.
    starts = [start for session in run.sessions for start in session.starts]
    assert all(start.answers == start.answers_checked > 0 for start in starts)
    assert run.problems == ()


@pytest.mark.smoke
def test_compile_is_a_truth_value(worker: Callable[..., ServerHandle]) -> None:
    """The text "False", which the published script took for true, is refused."""
    with pytest.raises(UsageProblem, match=r"compile=.* is True or False, not 'False'"):
        worker(compile="False")


@pytest.mark.smoke
def test_several_threads_do_not_compile(worker: Callable[..., ServerHandle]) -> None:
    """torch.compile is not safe in several threads: that is refused before anything starts."""
    with pytest.raises(UsageProblem, match="not safe in several threads"):
        worker(compile=True, workers=2)


def test_trace(model: ResNet, size: Size, artifacts: Path) -> None:
    """A direct call's profile is saved as a Chrome trace with the model's convolutions."""
    path = artifacts / "resnet" / "trace.json"
    write_trace(model, images(size, 1), path)
    names = {event.get("name") for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]}
    assert {"aten::conv2d", "aten::batch_norm", "aten::linear"} <= names
