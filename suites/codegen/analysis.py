"""The published analyses of Triton's counters: pure functions of the counts between two readings.

Triton adds the time of a batch once for each of its requests. Shares of such times are shares of a request's latency.
Shares of the time by execution are shares of the computation. Both are here under their own names.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_gpuserve.measure.window import COMPUTE, PER_REQUEST, QUEUE
from suites.codegen.repository import ENSEMBLE, GENERATION, STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.measure.counters import Counters

    Parts = Mapping[str, Counters]

INFER = f"{PER_REQUEST}infer"

TARGET_QUEUE_US = 50_000.0
"""Queue time in microseconds that the published autoscaler keeps."""

SCALING_TOLERANCE = 0.1
"""Kubernetes' default: within this share of the target, the number of replicas does not change."""


def mean_batch(counters: Counters) -> float:
    """Items in an execution of a model: ``nv_inference_count / nv_inference_exec_count``.

    For an ensemble it is always 1, because its executions are its requests.
    """
    return counters.items / counters.batches


def share_by_request(parts: Parts, model: str) -> float:
    """The published share: infer time of a model over that of the generating one, each summed over requests."""
    return parts[model].stages[INFER].seconds / parts[GENERATION].stages[INFER].seconds


def share_by_execution(parts: Parts, model: str) -> float:
    """Computing time of a model over that of the generating one, each execution counted once."""
    return parts[model].stages[COMPUTE].seconds / parts[GENERATION].stages[COMPUTE].seconds


def unexplained_seconds(parts: Parts) -> float:
    """Infer time of the ensemble minus that of its steps, for each of its requests; may be negative.

    The server must be idle at both readings, because a request in flight is counted in some of its steps only.
    """
    ensemble = parts[ENSEMBLE].stages[INFER]
    return (ensemble.seconds - math.fsum(parts[step].stages[INFER].seconds for step in STEPS)) / ensemble.count


def mean_queue_us(parts: Parts) -> float:
    """The published autoscaler's metric over the time between two readings, in microseconds.

    ``avg(delta(nv_inference_queue_duration_us[30s]) / (1 + delta(nv_inference_request_success[30s])))``: the mean over
    all models, including those without a queue. The 1 keeps it finite without answers.
    """
    each = [part.stages[QUEUE].seconds * 1e6 / (1 + (part.requests or 0)) for part in parts.values()]
    return math.fsum(each) / len(each)


def wanted_replicas(replicas: int, queue_us: float, target_us: float = TARGET_QUEUE_US) -> int:
    """Number of replicas of Kubernetes' horizontal pod autoscaler: ``ceil(replicas * metric / target)``.

    Source: "Algorithm details" of its documentation.

    Args:
        replicas: Present number of replicas, at least one.
        queue_us: See ``mean_queue_us``.
        target_us: Target of the metric.
    """
    ratio = queue_us / target_us
    return replicas if abs(ratio - 1) <= SCALING_TOLERANCE else max(1, math.ceil(replicas * ratio))
