"""Triton's HTTP interface: configurations of its models, the choice of the counted one, and their statistics.

Source: the "statistics extension" of Triton's documentation. Its ``inference_stats`` count requests: the time of a
batch is added to ``compute_infer`` once for every request of the batch, because each waited for all of it. Its
``batch_stats`` count executions, by batch size. This module keeps the two apart. ``compute`` is the time of executions,
``request.infer`` the time of requests in them. With batches of eight the second is eight times the first.

Triton sends an answer before it counts its request: a reading may lack the last answers that a client has got.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime, added
from pytest_gpuserve.measure.window import COMPUTE, OTHER_COMPUTE, QUEUE, SERVER
from pytest_gpuserve.process.logs import excerpt
from pytest_gpuserve.process.ready import Ask
from pytest_gpuserve.process.secrets import secret_headers
from pytest_gpuserve.servers.base import fetch
from pytest_gpuserve.servers.triton_config import ServedConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.servers.base import Site

READY: Final = "READY"


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


_Answer = TypeVar("_Answer")


def query_triton(
    site: Site, path: str, answer: type[_Answer], *, method: str = "GET", headers: Mapping[str, str] | None = None
) -> _Answer:
    """Query Triton for JSON.

    Args:
        site: Place of the server.
        path: Path of the query.
        answer: Type of the answer; numbers may be texts, as Triton writes those of 64 bits.
        method: HTTP method.
        headers: Headers, such as a token.

    Raises:
        ServerFailed: It did not answer, or not with 200, or not with JSON of this type.
    """
    asked = f"{method} {site.url(path)}"
    body = fetch(site, Ask(method, path, headers=headers or {}), what=f"Triton does not answer {asked}")
    try:
        return msgspec.json.decode(body, type=answer, strict=False)
    except ValueError as problem:
        said = excerpt(repr(body), {**os.environ, **secret_headers(headers or {})})
        raise ServerFailed(f"Triton's answer to {asked} makes no sense", found=f"{problem}: {said}") from None


class _Loaded(msgspec.Struct):
    name: str
    state: str = ""


class _Server(msgspec.Struct):
    version: str


def read_configs(site: Site) -> dict[str, ServedConfig]:
    """The configuration of every loaded model, by name.

    Raises:
        ServerFailed: Triton does not answer, or its answer is invalid.
    """
    index = query_triton(site, "/v2/repository/index", list[_Loaded], method="POST")
    return {name: read_config(site, name) for name in sorted({each.name for each in index if each.state == READY})}


def read_config(site: Site, model: str, *, headers: Mapping[str, str] | None = None) -> ServedConfig:
    """The configuration of a model.

    Raises:
        ServerFailed: Triton does not answer, or its answer is invalid.
    """
    return query_triton(site, f"/v2/models/{quote(model, safe='')}/config", ServedConfig, headers=headers)


def read_version(site: Site, *, headers: Mapping[str, str] | None = None) -> ServerSetting:
    """The version of a running Triton, as a setting.

    Raises:
        ServerFailed: Triton does not answer, or its answer is invalid.
    """
    return ServerSetting(query_triton(site, "/v2", _Server, headers=headers).version)


@lru_cache(maxsize=8)
def roles_of(site: Site, *, model: str | None, asked: str | None) -> Roles:
    """Roles of a running server's models; queried once for each start.

    Raises:
        ServerFailed: Triton does not answer, its answer is invalid, or the counted model is ambiguous.
    """
    return choose_roles(read_configs(site), model=model, asked=asked)


def choose_roles(configs: Mapping[str, ServedConfig], *, model: str | None, asked: str | None) -> Roles:
    """Choose the requested and the counted model, by the configurations alone.

    The default of ``asked`` is the only ensemble, else the counted model. The default of ``model`` is the only model
    that
    batches: among the parts of ``asked`` if that is an ensemble, else ``asked`` itself, else among all models.

    Args:
        configs: Configurations of all loaded models, by name.
        model: The model to be counted; None for the default.
        asked: The model that requests name; None for the default.

    Raises:
        ServerFailed: The model does not exist, or the default is ambiguous; names the argument that helps.
    """
    for argument, name in (("model", model), ("asked", asked)):
        if name is not None and name not in configs:
            raise ServerFailed(
                f"triton_server: {argument}={name!r} is not one of the loaded models",
                found=", ".join(sorted(configs)) or "no model is loaded",
                remedies=[f"name one of these by {argument}=, or have it loaded by models="],
            )
    ensembles = [name for name in configs if configs[name].steps]
    if model in ensembles:
        raise ServerFailed(
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


def _only_one_that_batches(pool: tuple[str, ...], asked: str | None, configs: Mapping[str, ServedConfig]) -> str:
    batching = [name for name in pool if configs[name].batches]
    if asked in batching:
        return str(asked)
    if len(batching) == 1:
        return batching[0]
    if len(pool) == 1:
        return pool[0]
    found = f"these batch: {', '.join(batching)}" if batching else f"none of {', '.join(pool)} has dynamic batching"
    raise ServerFailed(
        "triton_server: the model whose batches are to be counted is ambiguous",
        found=found if pool else "no model is loaded",
        remedies=["name it: model=...", "or load less: models=[...]"],
    )


def _parts(name: str | None, configs: Mapping[str, ServedConfig]) -> tuple[str, ...]:
    """Models of an ensemble, including those of nested ensembles; each once, in order."""
    found: dict[str, None] = {}
    todo = list(configs[name].steps) if name is not None and name in configs else []
    while todo:
        step = todo.pop(0)
        inner = configs[step].steps if step in configs else ()
        if inner:
            # The recursion ends, because Triton does not load an ensemble that contains itself.
            todo[:0] = inner
        elif step in configs:
            found[step] = None
    return tuple(found)


_NS: Final = 1e-9

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class _Spent(msgspec.Struct):
    count: _Count
    ns: _Count

    @property
    def time(self) -> StageTime:
        return StageTime(self.ns * _NS, self.count)


class _BatchStats(msgspec.Struct):
    batch_size: _Count
    compute_input: _Spent
    compute_infer: _Spent
    compute_output: _Spent


class _InferenceStats(msgspec.Struct):
    success: _Spent
    queue: _Spent
    compute_input: _Spent
    compute_infer: _Spent
    compute_output: _Spent


class _ModelStats(msgspec.Struct):
    name: str
    inference_count: _Count
    execution_count: _Count
    inference_stats: _InferenceStats
    batch_stats: list[_BatchStats]


class Statistics(msgspec.Struct):
    """Triton's answer to ``GET /v2/models/stats``: all models, read at the same time."""

    model_stats: list[_ModelStats]


def read_statistics(site: Site, roles: Roles, *, headers: Mapping[str, str] | None = None) -> Counters:
    """Read the counters of a running server; see `counters_of`.

    Raises:
        ServerFailed: Triton does not answer, its answer is invalid, or lacks a model.
    """
    return counters_of(query_triton(site, "/v2/models/stats", Statistics, headers=headers), roles)


def counters_of(told: Statistics, roles: Roles) -> Counters:
    """Counters of a server.

    A failed request does not count, and neither do its items. But a failed execution counts as a batch, as in Triton.
    Versions of a model are added up.

    Args:
        told: Its answer.
        roles: The requested and the counted model.

    Returns:
        Items, batches, batch sizes, queue and compute time of the counted model. Requests, and their whole time, of the
        requested one. ``compute.NAME`` of its other parts. Every model as a part; an ensemble's batches are its
        requests.

    Raises:
        ServerFailed: The answer lacks a model.
    """
    versions: dict[str, list[Counters]] = {}
    for model in told.model_stats:
        versions.setdefault(model.name, []).append(_version(model))
    parts = {name: whole for name, found in versions.items() if (whole := added(found)) is not None}
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


def _version(model: _ModelStats) -> Counters:
    requests = model.inference_stats
    sizes: dict[str, int] = {}
    for batch in model.batch_stats:
        size = str(batch.batch_size)
        sizes[size] = sizes.get(size, 0) + batch.compute_infer.count
    nanoseconds = sum(
        batch.compute_input.ns + batch.compute_infer.ns + batch.compute_output.ns for batch in model.batch_stats
    )
    return Counters(
        items=model.inference_count,
        batches=model.execution_count,
        batch_sizes={size: count for size, count in sizes.items() if count},
        stages={
            SERVER: requests.success.time,
            QUEUE: requests.queue.time,
            COMPUTE: StageTime(nanoseconds * _NS, sum(sizes.values())),
            # By request: each counts the whole time of its batch.
            "request.input": requests.compute_input.time,
            "request.infer": requests.compute_infer.time,
            "request.output": requests.compute_output.time,
        },
        requests=requests.success.count,
    )
