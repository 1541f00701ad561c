"""What is told of a load that was lost after it had begun."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.load.validity import one_line

if TYPE_CHECKING:
    from pytest_gpuserve.errors import LoadFailed

_OF_A_WORKER: Final = re.compile(r"\S/worker-\d+\b(?P<lost> was lost\b)?")
"""In a coordinator's last line: ``NODE/worker-P``, and whether it says already what the load came to."""


def lost_in_mid_load(problem: LoadFailed) -> Reason:
    """Say in one line what became of a load: a process of it says why in the last line of its log.

    Where that names a worker elsewhere, it is the whole reason: that the engine here ended is what follows.
    """
    said = [line for line in problem.log_tail.splitlines() if line.strip()]
    last = one_line(said[-1]) if said else ""
    of_a_worker = _OF_A_WORKER.search(last)
    if of_a_worker is not None:
        text = last if of_a_worker["lost"] else f"lost in mid-load: {last}"
    else:
        why = last or one_line(problem.found)
        text = f"lost in mid-load: {problem.summary}" + (f": {why}" if why else "")
    return Reason(ReasonKind.LOAD_LOST, text)
