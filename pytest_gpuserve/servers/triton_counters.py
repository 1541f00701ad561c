"""Triton's statistics of its models: what it executed, in which batches, and where the time went.

Source: the "statistics extension" of Triton's documentation. Its ``inference_stats`` count requests: what a batch took
in ``compute_infer`` is added there once for every request of the batch, each of which waited for all of it. Its
``batch_stats`` count executions, by batch size. The two are kept apart here: ``compute`` is the time of executions,
``request.infer`` what requests spent in them; with batches of eight the second is eight times the first.

Triton sends an answer before it counts its request: a reading may lack the last few that a client has seen answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.measure.counters import Counters, StageTime, added
from pytest_gpuserve.measure.window import COMPUTE, OTHER_COMPUTE, QUEUE, SERVER

if TYPE_CHECKING:
    from pytest_gpuserve.servers.triton_http import Roles

STATISTICS: Final = "/v2/models/stats"
"""All models at once, so that what is set side by side was read at one time."""

PER_REQUEST: Final = {
    "request.input": "compute_input",
    "request.infer": "compute_infer",
    "request.output": "compute_output",
}
"""Stages by request: each request counts the whole time of its batch."""

_NS: Final = 1e-9


def counters_of(answer: object, roles: Roles) -> Counters:
    """Read the counters of a server out of its answer to ``GET /v2/models/stats``.

    A failed request is not among the requests and its items not among the items, but an execution that failed is one
    of the batches, as Triton counts it. Versions of a model are added up. ``pending`` is left out: it is on the metrics
    page alone, which costs more than all of this.

    Args:
        answer: The parsed JSON.
        roles: Which model is asked, and which is counted.

    Returns:
        Items, batches, batch sizes, queue and compute time of the counted model; requests and the time of whole
        requests of the asked one; ``compute.NAME`` of the others that it is made of; every model as a part, in which an
        ensemble's batches are its requests.

    Raises:
        ServerFailed: It makes no sense, or a model is not in it.
    """
    try:
        parts = _models(answer)
    except (LookupError, TypeError, ValueError) as problem:
        raise ServerFailed("Triton's statistics make no sense", found=f"{type(problem).__name__}: {problem}") from None
    for name in (roles.counted, roles.asked):
        if name not in parts:
            raise ServerFailed(
                f"Triton has no statistics of model {name}", found=", ".join(sorted(parts)) or "of no model"
            )
    asked, counted = parts[roles.asked], parts[roles.counted]
    others = {
        OTHER_COMPUTE + name: parts[name].stages[COMPUTE]
        for name in roles.pipeline
        if name != roles.counted and name in parts
    }
    return replace(
        counted, requests=asked.requests, stages={**counted.stages, **others, SERVER: asked.stages[SERVER]}, parts=parts
    )


def _models(answer: object) -> dict[str, Counters]:
    versions: dict[str, list[Counters]] = {}
    for entry in _list(_object(answer)["model_stats"]):
        model = _object(entry)
        name = model["name"]
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is no name")
        versions.setdefault(name, []).append(_version(model))
    return {name: whole for name, found in versions.items() if (whole := added(found)) is not None}


def _version(model: Mapping[str, Any]) -> Counters:
    requests = _object(model["inference_stats"])
    sizes: dict[str, int] = {}
    nanoseconds = 0
    for entry in map(_object, _list(model["batch_stats"])):
        size = str(_whole(entry, "batch_size"))
        count = _whole(_object(entry["compute_infer"]), "count")
        sizes[size] = sizes.get(size, 0) + count
        nanoseconds += sum(_whole(_object(entry[key]), "ns") for key in PER_REQUEST.values())
    success = _time(requests["success"])
    return Counters(
        items=_whole(model, "inference_count"),
        batches=_whole(model, "execution_count"),
        batch_sizes={size: count for size, count in sizes.items() if count},
        stages={
            SERVER: success,
            QUEUE: _time(requests["queue"]),
            COMPUTE: StageTime(nanoseconds * _NS, sum(sizes.values())),
            **{stage: _time(requests[key]) for stage, key in PER_REQUEST.items()},
        },
        requests=success.count,
    )


def _time(value: object) -> StageTime:
    entry = _object(value)
    return StageTime(_whole(entry, "ns") * _NS, _whole(entry, "count"))


def _whole(entry: Mapping[str, Any], key: str) -> int:
    value = entry[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{key} is {value!r}, no whole number")
    if value < 0:
        raise ValueError(f"{key} is {value}")
    return value


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{str(value)[:80]!r} is no object")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:80]!r} is no list")
    return value
