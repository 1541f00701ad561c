"""Sources of load engines: processes of this host, or workers on several."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from pytest_gpuserve.process.command_line import module_command

if TYPE_CHECKING:
    from collections.abc import Sequence

END_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """A process that takes part in a load, with the messages of an engine (``load.wire``).

    Args:
        command: Program and arguments.
        name: Name in a report, if its ticks do not name workers of their own.
        part: Its share of the load, or the first of its workers' shares.
        end_seconds: Longest time to end by itself after its input is closed.
    """

    command: Sequence[str]
    name: str
    part: int
    end_seconds: float = END_SECONDS


class EngineSource(Protocol):
    """Starts the engines of a load."""

    @property
    def name(self) -> str:
        """Name in a report."""

    @property
    def is_here(self) -> bool:
        """Whether all its workers run on this host, concurrently."""

    @property
    def ready_seconds(self) -> float:
        """Longest time of a process until it can begin."""

    def launches(self, workers: int) -> Sequence[EngineLaunch]:
        """Return the processes for this number of workers."""


@dataclass(frozen=True, slots=True)
class LocalEngines:
    """An engine process of this host for each worker; for the fields see ``EngineSource`` and ``EngineLaunch``."""

    name: str = "local"
    is_here: bool = True
    ready_seconds: float = 20.0
    end_seconds: float = END_SECONDS

    def launches(self, workers: int) -> Sequence[EngineLaunch]:
        """See ``EngineSource``."""
        command = module_command("pytest_gpuserve.load.engine", str(os.getpid()))
        return [EngineLaunch(command, f"engine {part}", part, self.end_seconds) for part in range(workers)]


LOCAL: Final[EngineSource] = LocalEngines()
