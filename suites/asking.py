"""Several requests asked of a server at once, so that they share batches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pytest_gpuserve.asking import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.asking import Answer
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.servers.instance import Instance


def ask_together(targets: Sequence[Target], running: Instance, *, at_once: int) -> list[Answer | Refused]:
    """Ask each target once; a refusal, too, is what came of it.

    Args:
        targets: Of one deployment.
        running: It.
        at_once: How many requests are under way at a time.
    """

    def ask(target: Target) -> Answer | Refused:
        try:
            return target.ask(running)
        except Refused as refused:
            return refused

    with ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(ask, targets))
