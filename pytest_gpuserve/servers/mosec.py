"""mosec (https://mosecorg.github.io/mosec): an app file that calls ``Server().run()``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime
from pytest_gpuserve.measure.window import COMPUTE, FORMATION, OTHER_COMPUTE, SERVER
from pytest_gpuserve.servers.app import AppServer
from pytest_gpuserve.servers.base import Launch
from pytest_gpuserve.servers.instance import check_length
from pytest_gpuserve.servers.metric_names import bucket_counts, check_counts, is_count, read_samples, scrape

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from prometheus_client.samples import Sample

    from pytest_gpuserve.servers.base import Argument, Site

NAMESPACE = "mosec_service"
TOTAL = "total"
"""mosec's name for the stage that times whole requests."""

WAITING = f"{NAMESPACE}_remaining_task"
"""Gauge of tasks in progress."""

OURS = frozenset({"address", "port", "path", "namespace"})
"""mosec's own arguments that the fixture sets itself."""

LONGEST_SOCKET_FOLDER = 75
"""Longest folder: Linux limits a Unix socket's path to 107 bytes, and mosec appends ``/ipc_Worker_1.socket``."""


class _Stage(msgspec.Struct):
    worker: str
    max_batch_size: int
    max_wait_time: int


class _Config(msgspec.Struct):
    capacity: int
    timeout: int
    runtimes: list[_Stage]


@dataclass(frozen=True)
class Mosec(AppServer):
    """A mosec app with its arguments.

    Args:
        app: The app; mosec's own arguments (``capacity``, ``timeout``, ``max_request_size`` ...) are among its
            arguments.
        stage: The stage whose batches are counted, such as ``Inference_2``; None for the last one that batches.

    Raises:
        UsageProblem: The fixture sets an argument itself.
    """

    stage: str | None = None
    name: str = field(default="mosec", init=False)

    def __post_init__(self) -> None:
        self.app.refuse(OURS)

    def launch(self, site: Site) -> Launch:
        """See ``ServerKind``.

        Raises:
            ServerFailed: The folder's name is too long for mosec's Unix sockets.
        """
        sockets = site.folder / "mosec"
        check_length(
            sockets,
            LONGEST_SOCKET_FOLDER,
            f"mosec_server: mosec makes Unix sockets in a folder of at most {LONGEST_SOCKET_FOLDER} characters",
        )
        return Launch(
            argv=(
                self.app.python,
                str(self.app.file),
                f"--address={site.host}",
                f"--port={site.port}",
                f"--path={sockets}",
                f"--namespace={NAMESPACE}",
                *self.app.flags(),
            ),
            environment=self.app.environment,
            cwd=self.app.file.parent,
        )

    def read_counters(self, site: Site) -> Counters:
        """See ``ServerKind``; zero before the first batch, because mosec shows a stage only after that."""
        samples = mosec_samples(scrape(site))
        counters = batch_counters(samples, self.stage)
        if counters.batches:
            return counters
        stage = single_stage(_config(site), self.stage)
        return counters if stage is None else single_counters(counters, samples, stage)

    def read_settings(self, site: Site) -> Mapping[str, ServerSetting]:
        """See ``ServerKind``; from the file that mosec's Python part writes for its server."""
        return settings_of(_config(site), self.app.arguments)


def settings_of(file: Path, arguments: Mapping[str, Argument]) -> dict[str, ServerSetting]:
    """Read mosec's own settings, and those of each stage.

    Args:
        file: mosec's file of settings, which it writes before it starts its server.
        arguments: The requested arguments.

    Raises:
        ServerFailed: The file cannot be read, or is invalid.
    """
    config = _read_config(file)
    asked = {name: str(arguments[name]) for name in ("capacity", "timeout") if name in arguments}
    settings = {
        "capacity": ServerSetting(str(config.capacity), asked.get("capacity")),
        "timeout": ServerSetting(str(config.timeout), asked.get("timeout")),
    }
    for stage in config.runtimes:
        settings[f"{stage.worker}.max_batch_size"] = ServerSetting(str(stage.max_batch_size))
        settings[f"{stage.worker}.max_wait_time"] = ServerSetting(str(stage.max_wait_time))
    return settings


def single_stage(file: Path, stage: str | None) -> str | None:
    """Stage to count if the pipeline does not batch: the named one, else the last; None if a stage batches.

    Args:
        file: As for `settings_of`.
        stage: The named stage.

    Raises:
        ServerFailed: The file cannot be read, or is invalid.
    """
    stages = _read_config(file).runtimes
    if not stages or any(each.max_batch_size > 1 for each in stages):
        return None
    return stage or stages[-1].worker


def single_counters(counters: Counters, samples: list[Sample], stage: str) -> Counters:
    """Add the executions of a stage that does not batch: each item by itself.

    mosec has no histogram of its batches, but times each execution.

    Args:
        counters: Result of `batch_counters`.
        samples: The page that it was read from.
        stage: The stage.
    """
    executed = _times(samples, f"{NAMESPACE}_process_duration_second").get(stage, StageTime(0.0, 0)).count
    return replace(
        counters,
        items=executed,
        batches=executed,
        batch_sizes={"1": executed} if executed else {},
        stages=_stage_times(samples, stage),
    )


def _config(site: Site) -> Path:
    """File of mosec's settings."""
    return site.folder / "mosec" / "config.json"


def _read_config(file: Path) -> _Config:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Config)
    except (OSError, msgspec.MsgspecError) as problem:
        raise ServerFailed("mosec's settings cannot be read", found=str(problem), looked=[str(file)]) from None


def mosec_samples(page: str) -> list[Sample]:
    """Read mosec's own metrics; an app may add others, which may be invalid.

    Raises:
        ServerFailed: A metric cannot be read, or is not a count.
    """
    samples = read_samples(page, lambda name: name.startswith(f"{NAMESPACE}_"))
    check_counts(sample for sample in samples if sample.name != WAITING)
    return samples


def batch_counters(samples: list[Sample], stage: str | None) -> Counters:
    """Read items, batches, batch sizes and times of a stage from mosec's histograms, over all its workers.

    Times are left out if this version of mosec has no histogram of them.

    Raises:
        ServerFailed: The named stage has no batches although others have; or a bucket has no edge.
    """
    name = f"{NAMESPACE}_batch_size"
    stages = sorted({s.labels.get("stage", "") for s in samples if s.name == f"{name}_count"}, key=_position)
    if not stages:
        return Counters(items=0, batches=0, stages=_stage_times(samples, stage), requests=_requests(samples))
    if stage is not None and stage not in stages:
        raise ServerFailed(f"mosec counts no batches of stage {stage!r}", found=f"stages that batch: {stages}")
    counted = stage or stages[-1]
    ours = [sample for sample in samples if sample.labels.get("stage") == counted]
    pending = [sample.value for sample in samples if sample.name == WAITING]
    return Counters(
        items=round(sum(sample.value for sample in ours if sample.name == f"{name}_sum")),
        batches=round(sum(sample.value for sample in ours if sample.name == f"{name}_count")),
        batch_sizes=bucket_counts(sample for sample in ours if sample.name == f"{name}_bucket"),
        stages=_stage_times(samples, counted),
        requests=_requests(samples),
        pending=round(pending[0]) if pending and is_count(pending[0]) else None,
    )


def _requests(samples: list[Sample]) -> int:
    """Requests that were answered with 200; the only metric without failed ones."""
    name = f"{NAMESPACE}_throughput_total"
    return round(sum(sample.value for sample in samples if sample.name == name and sample.labels.get("code") == "200"))


def _stage_times(samples: list[Sample], counted: str | None) -> dict[str, StageTime]:
    """Name mosec's times as ``measure/window.py`` does; the default stage is the last one.

    mosec times a batch from its completion until its answers are passed on. As a stage named ``total`` it times a
    request from the arrival of its body until its answer is sent.
    """
    processing = _times(samples, f"{NAMESPACE}_process_duration_second")
    forming = _times(samples, f"{NAMESPACE}_batch_duration_second")
    found = {}
    total = processing.pop(TOTAL, None)
    if total is not None:
        found[SERVER] = total
    counted = counted or max(processing, key=_position, default=None)
    for stage, time in processing.items():
        found[COMPUTE if stage == counted else OTHER_COMPUTE + stage] = time
    if counted in forming:
        found[FORMATION] = forming[counted]
    return found


def _times(samples: list[Sample], name: str) -> dict[str, StageTime]:
    """Sum and count of a histogram by stage, over all its workers."""
    seconds: dict[str, float] = {}
    counts: dict[str, int] = {}
    for sample in samples:
        stage = sample.labels.get("stage", "")
        if sample.name == f"{name}_sum":
            seconds[stage] = seconds.get(stage, 0.0) + sample.value
        elif sample.name == f"{name}_count":
            counts[stage] = counts.get(stage, 0) + round(sample.value)
    return {stage: StageTime(seconds[stage], counts[stage]) for stage in sorted(seconds.keys() & counts.keys())}


def _position(stage: str) -> tuple[int, str]:
    # mosec names a stage Worker_POSITION.
    found = re.search(r"_(\d+)$", stage)
    return (int(found.group(1)) if found else 0, stage)
