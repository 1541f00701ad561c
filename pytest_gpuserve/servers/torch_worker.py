"""A worker of our own: a torch model in a process that batches and executes it, compiled or not."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime
from pytest_gpuserve.measure.window import COMPILING, COMPUTE, QUEUE, SERVER
from pytest_gpuserve.servers.app import AppServer, read_facts
from pytest_gpuserve.servers.base import Launch, with_own_package
from pytest_gpuserve.servers.inside.tally import read_tally
from pytest_gpuserve.servers.inside.torch_worker import COUNTED, FACTS_FILE, TALLY_FILE, Options

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpuserve.builds.relocation import Relocation
    from pytest_gpuserve.servers.base import Site

MODULE: Final = "pytest_gpuserve.servers.inside.torch_worker"

DEFAULT_BACKEND: Final = "inductor"


@dataclass(frozen=True)
class TorchWorker(AppServer):
    """A torch model in a process of its own.

    Args:
        app: Its file; its ``arguments`` are the keyword arguments of the callable, unchanged.
        callable: Name of the callable that returns the ``torch.nn.Module``; a dotted name reaches into classes.
        weights: A state dict to load (``torch.save(model.state_dict(), FILE)``); None for the model's initial weights.
        compile: Whether the model goes through ``torch.compile``.
        compile_backend: Backend of ``torch.compile``; None for its default.
        compile_mode: Mode of ``torch.compile``; None for its default.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        workers: Threads that execute the model.
        max_batch_size: Most rows of a joined batch; 1 executes each request by itself, with any number of rows.
        max_wait_ms: Longest wait of a request for others, from its arrival, in milliseconds.
        seed: Seed of the model's initial weights.

    Raises:
        UsageProblem: An argument is out of range, or two do not go together.
    """

    callable: str
    weights: Path | None = None
    compile: bool = False
    compile_backend: str | None = None
    compile_mode: str | None = None
    device: str = "cpu"
    workers: int = 1
    max_batch_size: int = 1
    max_wait_ms: float = 0.0
    seed: int = 0
    name: str = field(default="torch worker", init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "default_model", self.callable)
        if not isinstance(self.compile, bool):
            raise UsageProblem(f"torch_worker(compile=...) is True or False, not {self.compile!r}")
        if self.app.extra:
            raise UsageProblem(
                "torch_worker has no command line: its arguments are those of the callable, by name",
                found=" ".join(self.app.extra),
                remedies=["args={'hidden': 64}"],
            )
        if not all(part.isidentifier() for part in self.callable.split(".")):
            raise UsageProblem(
                f"torch_worker: {self.callable!r} is not the name of a callable",
                remedies=["torch_worker('file.py:build')"],
            )
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise UsageProblem(f"torch_worker(device=...) is 'cpu', 'cuda' or 'cuda:N', not {self.device!r}")
        for name, least in (("workers", 1), ("max_batch_size", 1), ("seed", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise UsageProblem(
                    f"torch_worker({name}=...) must be a whole number of at least {least}, not {value!r}"
                )
        if isinstance(self.max_wait_ms, bool) or not 0 <= self.max_wait_ms < float("inf"):
            raise UsageProblem(f"torch_worker(max_wait_ms=...) is 0 at least, not {self.max_wait_ms!r}")
        self._check_compile()
        if self.weights is not None and not self.weights.is_file():
            raise UsageProblem(
                f"torch_worker: the weights {self.weights} do not exist",
                remedies=["name the file relative to the test file, or give an absolute path"],
            )

    def _check_compile(self) -> None:
        given = [name for name in ("compile_backend", "compile_mode") if getattr(self, name) is not None]
        if given and not self.compile:
            raise UsageProblem(f"torch_worker: {' and '.join(given)} without compile", remedies=["compile=True"])
        if self.workers > 1 and self.compile:
            raise UsageProblem(
                "torch_worker: torch.compile is not safe in several threads",
                found=f"compile=True, workers={self.workers}",
                remedies=["workers=1", "compile=False"],
            )

    def launch(self, site: Site) -> Launch:
        """See ``ServerKind``."""
        options = Options(
            model=str(self.app.file),
            callable=self.callable,
            arguments=dict(self.app.arguments),
            folder=str(site.folder),
            host=site.host,
            port=site.port,
            device=self.device,
            seed=self.seed,
            weights="" if self.weights is None else str(self.weights),
            compile_backend=self._backend if self.compile else "",
            compile_mode=self.compile_mode or "",
            workers=self.workers,
            max_batch_size=self.max_batch_size,
            max_wait_ms=self.max_wait_ms,
        )
        return Launch(
            argv=(self.app.python, "-m", MODULE, json.dumps(asdict(options))),
            environment=with_own_package(site, self.app.environment),
            cwd=self.app.file.parent,
        )

    def read_counters(self, site: Site) -> Counters:
        """See ``ServerKind``; an item is a row. Counters are read from a tally, without a request."""
        counted = read_tally(site.folder / TALLY_FILE, COUNTED)
        values, executions, answered = counted.values, counted.values["executions"], counted.values["answered"]
        stages = {
            SERVER: StageTime(values["server_ns"] / 1e9, answered),
            QUEUE: StageTime(values["queue_ns"] / 1e9, values["executed"]),
            COMPUTE: StageTime(values["compute_ns"] / 1e9, executions),
        }
        if self.compile:
            stages[COMPILING] = StageTime(values["compiling_ns"] / 1e9, values["compiling"])
        return Counters(
            items=values["items"],
            batches=executions,
            batch_sizes=counted.batch_sizes,
            stages=stages,
            requests=answered,
        )

    def read_settings(self, site: Site) -> Mapping[str, ServerSetting]:
        """See ``ServerKind``; ``compile`` comes from dynamo's counters, and is unknown before the first execution."""
        values, _ = read_tally(site.folder / TALLY_FILE, COUNTED)
        settings = {
            "compile": ServerSetting(str(values["frames"] > 0) if values["executions"] else None, str(self.compile))
        }
        if self.compile:
            settings["compiled frames"] = ServerSetting(str(values["frames"]))
            settings["compiled graphs"] = ServerSetting(str(values["graphs"]))
            settings["graph breaks"] = ServerSetting(str(values["breaks"]))
        # The worker uses its options as they are.
        settings |= {name: ServerSetting(text, text) for name, text in self._requested().items() if text}
        return {**settings, **{name: ServerSetting(text) for name, text in _facts(site).settings.items()}}

    def read_cold_start(self, site: Site) -> Mapping[str, float]:
        """See ``ServerKind``: import of torch, build, load, call of ``torch.compile``, first request."""
        return _facts(site).cold_start

    def workload(self) -> Mapping[str, str]:
        """See ``ServerKind``; weights by the name of their file, and a GPU without its number."""
        return {
            "server": self.name,
            **self.app.workload(),
            "callable": self.callable,
            "arguments": json.dumps(dict(self.app.arguments), sort_keys=True),
            "weights": "" if self.weights is None else self.weights.name,
            "compile": str(self.compile),
            **self._requested(),
            "device": self.device.partition(":")[0],
            "seed": str(self.seed),
        }

    def information(self) -> Mapping[str, str]:
        """See ``ServerKind``; weights by their size, because a hash of gigabytes takes too long."""
        found = self.app.information()
        if self.weights is not None:
            found["weights_bytes"] = str(self.weights.stat().st_size)
        return found

    def relocated(self, relocation: Relocation) -> TorchWorker:
        """See ``ServerKind``; weights that git does not track are the same in both builds."""
        weights = None if self.weights is None else relocation.path(self.weights)
        return replace(self, app=self.app.relocated(relocation), weights=weights)

    def _requested(self) -> dict[str, str]:
        """Requested settings as text, by their names."""
        asked = {
            "device": self.device,
            "workers": str(self.workers),
            "max_batch_size": str(self.max_batch_size),
            "max_wait_ms": f"{self.max_wait_ms:g}",
        }
        if self.compile:
            asked |= {"compile_backend": self._backend, "compile_mode": self.compile_mode or ""}
        return asked

    @property
    def _backend(self) -> str:
        return self.compile_backend or DEFAULT_BACKEND


class _Facts(msgspec.Struct):
    """Facts that the worker wrote about its start: seconds by part, and its settings."""

    cold_start: dict[str, float]
    settings: dict[str, str]


def _facts(site: Site) -> _Facts:
    remedy = "see the end of the worker's log: the worker reports its setup before its first answer"
    return read_facts(site.folder / FACTS_FILE, _Facts, who="the torch worker", remedy=remedy)
