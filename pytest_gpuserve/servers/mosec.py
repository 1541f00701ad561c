"""mosec (https://mosecorg.github.io/mosec): an app file that calls ``Server().run()``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime
from pytest_gpuserve.measure.window import COMPUTE, FORMATION, OTHER_COMPUTE, SERVER
from pytest_gpuserve.servers.app import AppServer, read_facts
from pytest_gpuserve.servers.metric_names import bucket_counts, check_counts, read_samples, scrape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from prometheus_client.samples import Sample

    from pytest_gpuserve.servers.base import Launch, Site

NAMESPACE = "mosec_service"
TOTAL = "total"
"""mosec's name for the stage that times whole requests."""

WAITING = f"{NAMESPACE}_remaining_task"
"""Gauge of tasks in progress, which is not a count."""

OURS = frozenset({"address", "port", "path", "namespace"})
"""mosec's own arguments that the fixture sets itself."""


class Stage(msgspec.Struct):
    """A stage of a pipeline."""

    worker: str
    max_batch_size: int
    max_wait_time: int


class _Config(msgspec.Struct):
    capacity: int
    timeout: int
    runtimes: list[Stage]


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
        """See ``ServerKind``."""
        return self.app.launch(
            str(self.app.file),
            f"--address={site.host}",
            f"--port={site.port}",
            f"--path={site.folder / 'mosec'}",
            f"--namespace={NAMESPACE}",
        )

    def read_counters(self, site: Site) -> Counters:
        """See ``ServerKind``; zero before the first batch, because mosec shows a stage only after that."""
        return counters_of(mosec_samples(scrape(site)), _config(site).runtimes, self.stage)

    def read_settings(self, site: Site) -> Mapping[str, ServerSetting]:
        """See ``ServerKind``; from the file that mosec's Python part writes for its server."""
        config = _config(site)
        asked = {name: str(self.app.arguments[name]) for name in ("capacity", "timeout") if name in self.app.arguments}
        settings = {
            "capacity": ServerSetting(str(config.capacity), asked.get("capacity")),
            "timeout": ServerSetting(str(config.timeout), asked.get("timeout")),
        }
        for stage in config.runtimes:
            settings[f"{stage.worker}.max_batch_size"] = ServerSetting(str(stage.max_batch_size))
            settings[f"{stage.worker}.max_wait_time"] = ServerSetting(str(stage.max_wait_time))
        return settings


def _config(site: Site) -> _Config:
    """Mosec's settings, which it writes before it starts its server."""
    place = site.folder / "mosec" / "config.json"
    return read_facts(place, _Config, who="mosec", remedy="call Server().run() in the process of the app itself")


def mosec_samples(page: str) -> list[Sample]:
    """Read mosec's own metrics; an app may add others, which may be invalid.

    Raises:
        ServerFailed: A metric cannot be read, or is not a count.
    """
    samples = read_samples(page, lambda name: name.startswith(f"{NAMESPACE}_") and name != WAITING)
    check_counts(samples)
    return samples


def counters_of(samples: list[Sample], stages: Sequence[Stage], stage: str | None) -> Counters:
    """Read items, batches, batch sizes and times of a stage, over all its workers.

    mosec has no histogram of batches of a stage that does not batch, but times each execution: of an item by itself.
    Times are left out if this version of mosec has no histogram of them.

    Args:
        samples: mosec's metrics.
        stages: The stages of its pipelines.
        stage: The named stage; None for the last one that batches, or the last one of all.

    Raises:
        ServerFailed: The named stage does not exist; or a bucket has no edge.
    """
    sizes = {each.worker: each.max_batch_size for each in stages}
    counted = stage or [*sizes, *(name for name in sizes if sizes[name] > 1)][-1]
    if counted not in sizes:
        raise ServerFailed(f"mosec has no stage {counted!r}", found=f"its stages: {', '.join(sizes)}")
    ours = [sample for sample in samples if sample.labels.get("stage") == counted]
    times = _stage_times(samples, counted)
    name = f"{NAMESPACE}_batch_size"
    if sizes[counted] > 1:
        items = round(sum(sample.value for sample in ours if sample.name == f"{name}_sum"))
        batches = round(sum(sample.value for sample in ours if sample.name == f"{name}_count"))
        by_size = bucket_counts(sample for sample in ours if sample.name == f"{name}_bucket")
    else:
        items = batches = times[COMPUTE].count if COMPUTE in times else 0
        by_size = {"1": batches} if batches else {}
    return Counters(items=items, batches=batches, batch_sizes=by_size, stages=times, requests=_requests(samples))


def _requests(samples: list[Sample]) -> int:
    """Requests that were answered with 200; the only metric without failed ones."""
    name = f"{NAMESPACE}_throughput_total"
    return round(sum(sample.value for sample in samples if sample.name == name and sample.labels.get("code") == "200"))


def _stage_times(samples: list[Sample], counted: str) -> dict[str, StageTime]:
    """Name mosec's times as ``measure/window.py`` does.

    mosec times a batch from its completion until its answers are passed on. As a stage named ``total`` it times a
    request from the arrival of its body until its answer is sent.
    """
    names = {TOTAL: SERVER, counted: COMPUTE}
    processing = _times(samples, f"{NAMESPACE}_process_duration_second")
    found = {names.get(stage, OTHER_COMPUTE + stage): time for stage, time in processing.items()}
    forming = _times(samples, f"{NAMESPACE}_batch_duration_second")
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
