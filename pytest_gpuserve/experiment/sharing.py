"""Requests whose tensors go through the system shared memory of this host."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.driver import most_under_way
from pytest_gpuserve.load.shared_memory import share
from pytest_gpuserve.process.ports import is_here
from pytest_gpuserve.process.ready import verified_tls
from pytest_gpuserve.servers.base import Guarded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuserve.load.kserve import Inference
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.shared_memory import Layout, SharedTensors
    from pytest_gpuserve.servers.instance import Instance

WITHOUT = "leave out shared_memory={...}"


@dataclass(frozen=True)
class Sharing:
    """What of a target goes through shared memory.

    Args:
        inferences: Its payloads, which name no outputs.
        layout: Their outputs.
    """

    inferences: tuple[Inference, ...]
    layout: Layout

    @contextmanager
    def opened(self, instance: Instance, schedule: Schedule) -> Iterator[SharedTensors]:
        """Own memory that a running server knows, for a load by this schedule; at the end it is forgotten and removed.

        Raises:
            UsageProblem: As of ``slots_needed``; or the server is on another machine, or there is no room.
            LoadFailed: The server does not take the memory.
        """
        site = instance.site
        if not is_here(site.host):
            raise UsageProblem(
                f"the server at {site.host} has no memory in common with this machine",
                remedies=["run the test on the machine of the server", WITHOUT],
            )
        with share(
            self.inferences,
            dict(self.layout.outputs),
            slots=slots_needed(schedule),
            host=site.host,
            port=site.port,
            tls=verified_tls(site.ca_file) if site.tls else None,
            headers=instance.kind.owner_headers(site) if isinstance(instance.kind, Guarded) else {},
        ) as shared:
            yield shared


def slots_needed(schedule: Schedule) -> int:
    """Return how many requests may be under way at the same time, each with a place of its own for its answer.

    Raises:
        UsageProblem: Nothing bounds them.
    """
    most = most_under_way(schedule)
    if most is None:
        kind = type(schedule).__name__
        raise UsageProblem(
            "an open loop through shared memory needs a ceiling: each request under way has a place of its own there",
            found=f"{kind} without max_in_flight",
            remedies=[f"schedule={kind}(..., max_in_flight=64)", "a closed loop: concurrency=16", WITHOUT],
        )
    return most


def joined(parts: Sequence[Sharing | None]) -> Sharing | None:
    """Put together what rotates; None where none of it is shared.

    Raises:
        UsageProblem: Some of it is shared and some is not, or the outputs differ.
    """
    known = [part for part in parts if part is not None]
    if not known:
        return None
    if len(known) != len(parts):
        raise UsageProblem("rotate([...]): requests through shared memory and others cannot be mixed in one load")
    if len({part.layout for part in known}) > 1:
        raise UsageProblem(
            "rotate([...]): requests through shared memory have the same outputs, each of one size",
            found="; ".join(sorted({repr(dict(part.layout.outputs)) for part in known})),
            remedies=["give each infer(...) the same shared_memory={...}, with the most bytes that any of them takes"],
        )
    return Sharing(tuple(inference for part in known for inference in part.inferences), known[0].layout)
