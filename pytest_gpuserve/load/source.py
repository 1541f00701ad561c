"""Where load engines come from: processes of this host, or workers on several."""

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
    """A process that takes part in a load, and speaks as an engine does (``load.wire``).

    Args:
        command: What is run.
        name: What it is called in a report, where its ticks name no workers of its own.
        part: Its share of the load, or the first of its workers'.
        end_seconds: How long it may take to end by itself, when its input is closed.
    """

    command: Sequence[str]
    name: str
    part: int
    end_seconds: float = END_SECONDS


class EngineSource(Protocol):
    """Starts what loads a server."""

    @property
    def name(self) -> str:
        """What it is called in a report."""

    @property
    def is_here(self) -> bool:
        """Whether all its workers run on this host, beside each other."""

    @property
    def ready_seconds(self) -> float:
        """How long a process of it may take until it can begin."""

    def launches(self, workers: int) -> Sequence[EngineLaunch]:
        """Return the processes that make so many workers."""


@dataclass(frozen=True, slots=True)
class LocalEngines:
    """An engine process of this host for each worker; see ``EngineSource`` and ``EngineLaunch`` for its fields."""

    name: str = "local"
    is_here: bool = True
    ready_seconds: float = 20.0
    end_seconds: float = END_SECONDS

    def launches(self, workers: int) -> Sequence[EngineLaunch]:
        """See ``EngineSource``."""
        command = module_command("pytest_gpuserve.load.engine", str(os.getpid()))
        return [EngineLaunch(command, f"engine {part}", part, self.end_seconds) for part in range(workers)]


LOCAL: Final[EngineSource] = LocalEngines()
