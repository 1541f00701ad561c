"""The small server of the self-test as a kind of server."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from pytest_gpuserve.errors import NotInRevision, ServerFailed
from pytest_gpuserve.measure.counters import Counters, StageTime
from pytest_gpuserve.process.module import module_command
from pytest_gpuserve.selftest.server import METRICS, PREFIX, Options
from pytest_gpuserve.servers.base import Launch, TellsNothing
from pytest_gpuserve.servers.metric_names import scrape

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

    from pytest_gpuserve.servers.base import Site, Transport
    from pytest_gpuserve.servers.metric_names import Sample
    from pytest_gpuserve.servers.relocation import Relocation


@dataclass(frozen=True)
class BuiltIn(TellsNothing):
    """The server of ``selftest/server.py`` with these options."""

    options: Options
    name: str = field(default="self-test", init=False)
    ports: tuple[str, ...] = field(default=("http",), init=False)
    transport: Transport = field(default="http", init=False)
    health: str = field(default="", init=False)
    default_model: str = field(default="", init=False)
    python: str = field(default=sys.executable, init=False)

    def launch(self, site: Site) -> Launch:
        """See ``ServerKind``."""
        command = module_command("pytest_gpuserve.selftest.server", f"--port={site.port}", *self.options.flags())
        return Launch(argv=tuple(command), environment={}, cwd=site.folder)

    def read_counters(self, site: Site) -> Counters:
        """See ``ServerKind``."""
        return counters_of(scrape(site.port, METRICS))

    def workload(self) -> Mapping[str, str]:
        """See ``ServerKind``."""
        return {"server": self.name, **{name: str(value) for name, value in asdict(self.options).items()}}

    def information(self) -> Mapping[str, str]:
        """See ``ServerKind``."""
        return {}

    def relocated(self, relocation: Relocation) -> NoReturn:
        """Raise `NotInRevision`: the server is a part of this package."""
        raise NotInRevision(f"the self-test's server is a part of pytest-gpuserve, not of {relocation.revision}")


def counters_of(samples: list[Sample]) -> Counters:
    """Counters of a scrape. Raises `ServerFailed` where one is missing or unknown."""
    plain = {sample.name: sample.value for sample in samples if not sample.labels}
    labelled: dict[str, dict[str, float]] = {"batch_size": {}, "stage_seconds": {}, "stage_count": {}}
    try:
        for sample in samples:
            if sample.labels:
                (label,) = sample.labels.values()
                labelled[sample.name.removeprefix(f"{PREFIX}_").removesuffix("_total")][label] = sample.value
        stages = {
            stage: StageTime(seconds, round(labelled["stage_count"][stage]))
            for stage, seconds in labelled["stage_seconds"].items()
        }
        items, batches = round(plain[f"{PREFIX}_items_total"]), round(plain[f"{PREFIX}_batches_total"])
    except (LookupError, ValueError) as problem:
        raise ServerFailed("the counters of the self-test's server make no sense", found=repr(problem)) from None
    sizes = {size: round(count) for size, count in labelled["batch_size"].items()}
    return Counters(items=items, batches=batches, batch_sizes=sizes, stages=stages)
