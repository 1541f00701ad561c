"""Concurrent requests to a server, which then share batches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pytest_gpuserve.answers import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.answers import Answer
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.servers.instance import Instance


def send_together(targets: Sequence[Target], running: Instance, *, at_once: int) -> list[Answer | Refused]:
    """Send one request to each target; a refusal counts as an answer.

    Args:
        targets: Targets of one deployment.
        running: A server of that deployment.
        at_once: Largest number of requests in flight.
    """

    def ask(target: Target) -> Answer | Refused:
        try:
            return target.ask(running)
        except Refused as refused:
            return refused

    with ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(ask, targets))
