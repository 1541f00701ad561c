"""Counters of a torch worker, in a tally that its tests read without a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.servers.inside.tally import MOST_SIZES, Counted, Tally, read_tally

if TYPE_CHECKING:
    from pathlib import Path

FIELDS: Final = (
    "arrived",
    "taken",
    "answered",
    "failed",
    "server_ns",
    "queue_ns",
    "compute_ns",
    "executions",
    "executed",
    "items",
    "compiling_ns",
    "compiling",
    "frames",
    "graphs",
    "breaks",
)
"""Counters: requests that entered the queue, left it, were answered well, or got an error; sums of the stages' times;
executions, with their requests and rows; executions that compiled something; dynamo's compilations."""


def open_counters(path: Path) -> Tally:
    """Begin a worker's counters, with executions by their rows."""
    return Tally(path, MOST_SIZES, FIELDS)


def read_counters(path: Path) -> Counted:
    """Read a worker's counters.

    Raises:
        ServerFailed: The tally does not exist, or is invalid.
    """
    try:
        counted = read_tally(path, FIELDS)
    except (ValueError, OSError) as problem:
        raise ServerFailed(
            "the torch worker's counters make no sense",
            found=f"{type(problem).__name__}: {problem}",
            looked=[str(path)],
        ) from problem
    known = sum(counted.sizes.values())
    if known > counted.values["executions"]:
        found = f"{counted.values['executions']} executions, {known} by their batch sizes"
        raise ServerFailed("the torch worker's counters make no sense", found=found, looked=[str(path)])
    return counted
