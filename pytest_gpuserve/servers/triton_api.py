"""Triton's HTTP interface: configurations of its models, the choice of the counted one, and their statistics.

Source: the "statistics extension" of Triton's documentation. Its ``inference_stats`` count requests: the time of a
batch is added to ``compute_infer`` once for every request of the batch, because each waited for all of it. Its
``batch_stats`` count executions, by batch size. This module keeps the two apart. ``compute`` is the time of executions,
``request.infer`` the time of requests in them. With batches of eight the second is eight times the first.

Triton sends an answer before it counts its request: a reading may lack the last answers that a client has got.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.measure.counters import Counters, StageTime, added
from pytest_gpuserve.measure.window import COMPUTE, OTHER_COMPUTE, QUEUE, SERVER
from pytest_gpuserve.process.logs import excerpt
from pytest_gpuserve.process.secrets import secret_headers
from pytest_gpuserve.servers.query import fetch

if TYPE_CHECKING:
    from pytest_gpuserve.servers.base import Site

READY: Final = "READY"

Config = Mapping[str, Any]
"""A model's configuration from the server, with defaults."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles of the models of a server in a measurement.

    Args:
        asked: The model that requests name: an ensemble, or a model itself.
        counted: The model whose batches are counted.
        pipeline: The models that work on a request, the counted one among them.
    """

    asked: str
    counted: str
    pipeline: tuple[str, ...]


def query_triton(site: Site, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> Any:  # noqa: ANN401 -- whatever JSON it is
    """Query Triton for JSON.

    Args:
        site: Place of the server.
        path: Path of the query.
        method: HTTP method.
        headers: Headers, such as a token.

    Raises:
        ServerFailed: It did not answer, or not with 200, or not in JSON.
    """
    asked = f"{method} {site.url(path)}"
    body = fetch(site, path, what=f"Triton does not answer {asked}", method=method, headers=headers)
    try:
        return json.loads(body)
    except ValueError:
        said = excerpt(repr(body), {**os.environ, **secret_headers(headers or {})})
        raise ServerFailed(f"Triton's answer to {asked} is not JSON", found=said) from None


def read_configs(site: Site) -> dict[str, Config]:
    """The configuration of every loaded model, by name.

    Raises:
        ServerFailed: Triton does not answer, or its answer is invalid.
    """
    index = query_triton(site, "/v2/repository/index", method="POST")
    if not isinstance(index, list) or not all(isinstance(entry, dict) and "name" in entry for entry in index):
        raise ServerFailed("Triton's list of models makes no sense", found=excerpt(repr(index), os.environ))
    names = sorted({str(entry["name"]) for entry in index if entry.get("state") == READY})
    configs = {name: query_triton(site, f"/v2/models/{quote(name, safe='')}/config") for name in names}
    for name, config in configs.items():
        if not isinstance(config, dict):
            found = excerpt(repr(config), os.environ)
            raise ServerFailed(f"Triton's configuration of model {name} makes no sense", found=found)
    return configs


@lru_cache(maxsize=8)
def roles_of(site: Site, *, model: str | None, asked: str | None) -> Roles:
    """Roles of a running server's models; queried once for each start.

    Raises:
        ServerFailed: Triton does not answer, or its answer is invalid.
        UsageProblem: The counted model is ambiguous.
    """
    return choose_roles(read_configs(site), model=model, asked=asked)


def choose_roles(configs: Mapping[str, Config], *, model: str | None, asked: str | None) -> Roles:
    """Choose the requested and the counted model, by the configurations alone.

    The default of ``asked`` is the only ensemble, else the counted model. The default of ``model`` is the only model
    that
    batches: among the parts of ``asked`` if that is an ensemble, else ``asked`` itself, else among all models.

    Args:
        configs: Configurations of all loaded models, by name.
        model: The model to be counted; None for the default.
        asked: The model that requests name; None for the default.

    Raises:
        UsageProblem: The model does not exist, or the default is ambiguous; names the argument that helps.
    """
    for argument, name in (("model", model), ("asked", asked)):
        if name is not None and name not in configs:
            raise UsageProblem(
                f"triton_server: {argument}={name!r} is not one of the loaded models",
                found=", ".join(sorted(configs)) or "no model is loaded",
                remedies=[f"name one of these by {argument}=, or have it loaded by models="],
            )
    ensembles = [name for name in configs if _steps(configs[name])]
    if model in ensembles:
        raise UsageProblem(
            f"triton_server: model={model!r} is an ensemble, which does not batch itself",
            found=f"an ensemble of {', '.join(_parts(model, configs))}",
            remedies=["name one of these by model=, and the ensemble by asked="],
        )
    if asked is None and len(ensembles) == 1:
        asked = ensembles[0]
    pool = _parts(asked, configs) if asked in ensembles else tuple(name for name in configs if name not in ensembles)
    counted = model or _only_one_that_batches(pool, asked, configs)
    pipeline = pool if asked in ensembles else (counted,)
    return Roles(asked or counted, counted, tuple(dict.fromkeys((*pipeline, counted))))


def _only_one_that_batches(pool: tuple[str, ...], asked: str | None, configs: Mapping[str, Config]) -> str:
    batching = [name for name in pool if _batches(configs[name])]
    if asked in batching:
        return str(asked)
    if len(batching) == 1:
        return batching[0]
    if len(pool) == 1:
        return pool[0]
    found = f"these batch: {', '.join(batching)}" if batching else f"none of {', '.join(pool)} has dynamic batching"
    raise UsageProblem(
        "triton_server: the model whose batches are to be counted is ambiguous",
        found=found if pool else "no model is loaded",
        remedies=["name it: model=...", "or load less: models=[...]"],
    )


def _batches(config: Config) -> bool:
    size = config.get("max_batch_size")
    return isinstance(size, int) and size > 1 and ("dynamic_batching" in config or "sequence_batching" in config)


def _steps(config: Config) -> tuple[str, ...]:
    scheduling = config.get("ensemble_scheduling")
    steps = scheduling.get("step") if isinstance(scheduling, Mapping) else None
    return tuple(str(step["model_name"]) for step in steps or () if isinstance(step, Mapping) and "model_name" in step)


def _parts(name: str | None, configs: Mapping[str, Config]) -> tuple[str, ...]:
    """Models of an ensemble, including those of nested ensembles; each once, in order."""
    found: dict[str, None] = {}
    todo = list(_steps(configs.get(name or "", {})))
    while todo:
        step = todo.pop(0)
        inner = _steps(configs.get(step, {}))
        if inner:
            # The recursion ends, because Triton does not load an ensemble that contains itself.
            todo[:0] = inner
        elif step in configs:
            found[step] = None
    return tuple(found)


STATISTICS: Final = "/v2/models/stats"
"""Path of the statistics of all models, which are then read at the same time."""

PER_REQUEST: Final = {
    "request.input": "compute_input",
    "request.infer": "compute_infer",
    "request.output": "compute_output",
}
"""Stages by request: each request counts the whole time of its batch."""

_NS: Final = 1e-9


def counters_of(answer: object, roles: Roles) -> Counters:
    """Read the counters of a server from its answer to ``GET /v2/models/stats``.

    A failed request does not count, and neither do its items. But a failed execution counts as a batch, as in Triton.
    Versions of a model are added up. ``pending`` is left out: only the metrics page has it, which costs more than all
    of this.

    Args:
        answer: The parsed JSON.
        roles: The requested and the counted model.

    Returns:
        Items, batches, batch sizes, queue and compute time of the counted model. Requests, and their whole time, of the
        requested one. ``compute.NAME`` of its other parts. Every model as a part; an ensemble's batches are its
        requests.

    Raises:
        ServerFailed: The answer is invalid, or lacks a model.
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
            raise TypeError(f"{name!r} is not a name")
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
        raise TypeError(f"{str(value)[:80]!r} is not an object")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:80]!r} is not a list")
    return value
