"""Sources of load engines: processes of this host, or workers on several."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from pytest_gpuserve.process.command_line import module_command

if TYPE_CHECKING:
    from collections.abc import Sequence


class EngineSource(Protocol):
    """Source of processes that take part in a load, with the messages of an engine (``load.wire``)."""

    @property
    def name(self) -> str:
        """Name in a report."""

    @property
    def is_here(self) -> bool:
        """Whether all its workers run on this host, concurrently."""

    @property
    def ready_seconds(self) -> float:
        """Longest time of a process until it can begin."""

    @property
    def end_seconds(self) -> float:
        """Longest time of a process to end by itself after its input is closed."""

    def commands(self, workers: int) -> Sequence[Sequence[str]]:
        """Program and arguments of each process for this number of workers, in the order of their parts."""


@dataclass(frozen=True, slots=True)
class LocalEngines:
    """An engine process of this host for each worker; for the fields see `EngineSource`."""

    name: str = "local"
    is_here: bool = True
    ready_seconds: float = 20.0
    end_seconds: float = 5.0

    def commands(self, workers: int) -> Sequence[Sequence[str]]:
        """See `EngineSource`."""
        return [module_command("pytest_gpuserve.load.engine", str(os.getpid()))] * workers


LOCAL: Final[EngineSource] = LocalEngines()
