"""What makes the load of the command: ``--engine`` and how many workers share it."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.ray.address import ClusterAddress, parse_engine
from pytest_gpuserve.load.source import LOCAL

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from pytest_gpuserve.load.source import EngineSource

ENGINE: Final = "--engine"


def workers_of(arguments: argparse.Namespace) -> tuple[str, int]:
    """How many engines share the load, and which option says so.

    Raises:
        UsageProblem: Two say so, or one that says nothing of this engine.
    """
    local = arguments.engine == "local"
    if arguments.workers is None:
        return ("--processes", arguments.processes or 1)
    if arguments.processes is not None:
        raise UsageProblem("--processes and --workers contradict each other")
    if local:
        raise UsageProblem(
            "--workers means something only with --engine ray or the address of a cluster",
            remedies=[f"--processes {arguments.workers}, of this host"],
        )
    return ("--workers", arguments.workers)


@contextmanager
def chosen_engine(arguments: argparse.Namespace) -> Iterator[EngineSource]:
    """Have what makes the load ready, and end with the block what was started for it.

    Raises:
        UsageProblem: There is no such engine, Ray is not installed, or the cluster cannot be joined.
        LoadFailed: A cluster of its own does not start.
    """
    choice = parse_engine(arguments.engine, ENGINE)
    if choice == "local":
        yield LOCAL
        return
    from pytest_gpuserve.load.ray.source import RayEngine  # noqa: PLC0415 -- of no use to most loads

    address = choice if isinstance(choice, ClusterAddress) else None
    with (
        RayEngine(address, ENGINE) as engine,
        tempfile.NamedTemporaryFile(prefix="gpuserve-ray-", suffix=".log") as log,
    ):
        engine.check()
        yield engine.source(Path(log.name))
