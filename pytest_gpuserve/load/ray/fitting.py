"""Which answers a worker reports, so that those of all workers fit into one message to their owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from pytest_gpuserve.load.wire import Plan, Tick

MOST_BYTES: Final = 1 << 25
"""Of the answers that all workers together report in a tick: half of what a message may hold. Beyond it comes what the
worker reports whose turn it is: one answer of any size, and small ones (``engine.tally``)."""


def fitted(tick: Tick, plan: Plan) -> Tick:
    """Return the tick without the answers that are too many; they count as unchecked.

    Each worker may report its share of what a message holds. Answers larger than that are reported by one worker in
    each tick, in turn, so that large ones are checked as well, some of each worker. Where all answers are to be checked
    nothing is left out: that they do not fit is then for who passes them on to say.

    Args:
        tick: What the worker's engine reports.
        plan: The load, with the worker's part.
    """
    if plan.keep_answers != "some" or tick.number % plan.parts == plan.part:
        return tick
    left = MOST_BYTES // plan.parts
    if sum(len(answer.body) for answer in tick.answers) <= left:
        return tick
    kept = []
    unchecked = tick.unchecked
    for answer in tick.answers:
        if len(answer.body) <= left:
            kept.append(answer)
            left -= len(answer.body)
        else:
            unchecked += answer.count
    return msgspec.structs.replace(tick, answers=kept, unchecked=unchecked)
