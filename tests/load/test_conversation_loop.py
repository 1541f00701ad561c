"""Users of a closed loop converse: turn by turn, each after the answer to the one before it and a pause."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.load.engine.loop import RECONNECT_NS
from pytest_gpuserve.load.request import NUMBER_PLACE
from pytest_gpuserve.load.schedule import Closed, Steps
from pytest_gpuserve.load.wire import OPENS, Endpoint, Plan
from tests.fakes.simulated_load import HOUR_NS, MS, Reply, Sent, Simulation

if TYPE_CHECKING:
    from pytest_gpuserve.load.schedule import ClosedSchedule

PAUSES_NS = (OPENS, 7 * MS, 3 * MS, OPENS, OPENS, 0, OPENS, 20 * MS)
"""Pauses of conversations of three turns, one, two and two."""


def plan(schedule: ClosedSchedule, *, parts: int = 1, part: int = 0, **more: Any) -> Plan:  # noqa: ANN401 -- of the plan
    """Plan a load of these conversations; each payload is its index and the place of a number."""
    return Plan(
        endpoint=Endpoint("http", "simulated", 80),
        payloads=tuple((b"%d %s" % (index, NUMBER_PLACE),) for index in range(len(PAUSES_NS))),
        numbers_before_end=(len(NUMBER_PLACE),) * len(PAUSES_NS),
        pauses_ns=PAUSES_NS,
        schedule=schedule,
        tick_ns=HOUR_NS,
        timeout_ns=HOUR_NS,
        part=part,
        parts=parts,
        **more,
    )


def conversations(sent: list[Sent]) -> list[list[tuple[int, Sent]]]:
    """The turns of each conversation with their payloads, by the number that they bear."""
    found: dict[bytes, list[tuple[int, Sent]]] = {}
    for each in sent:
        payload, number = each.payload.split()
        found.setdefault(number, []).append((int(payload), each))
    return list(found.values())


@pytest.mark.parametrize("schedule", [Closed(5), Closed(4, think_seconds=0.011), Steps(((2, 0.3), (6, 0.4), (3, 0.3)))])
@pytest.mark.parametrize("trouble", [0.0, 0.4])
def test_a_turn_follows_the_answer_to_the_one_before_it_after_its_pause(
    schedule: ClosedSchedule, trouble: float
) -> None:
    """Also where an answer is an error, closes its connection or is lost: the conversation goes on on another one.

    Nobody's pause is cut short, and where connections stay each turn is sent to the nanosecond.
    """
    draw = random.Random(1)

    def serve(sent: Sent) -> Reply:
        del sent
        after_ns = draw.randrange(1, 20 * MS)
        if draw.random() >= trouble:
            return Reply(after_ns)
        return draw.choice([Reply(after_ns, keep=False), Reply(after_ns, "reset", lost=True), Reply(after_ns, "503")])

    finite = isinstance(schedule, Steps)
    simulation = Simulation(plan(schedule, nanoseconds=None if finite else 2000 * MS), serve).run()
    played = conversations(simulation.sent)
    assert len(played) > 50
    for turns in played:
        for (before, answered), (payload, sent) in pairwise(turns):
            assert payload == before + 1
            assert answered.end_ns is not None
            late_ns = sent.at_ns - answered.end_ns - PAUSES_NS[payload]
            assert 0 <= late_ns <= (RECONNECT_NS if trouble else 0)
    users = 6 if finite else schedule.users if isinstance(schedule, Closed) else 0
    assert simulation.most_at_once == users
    # Whoever begins somewhere in a conversation was a user's first.
    assert 0 < sum(PAUSES_NS[turns[0][0]] != OPENS for turns in played) < users
    ended = [turns for turns in played if PAUSES_NS[turns[-1][0] + 1 : turns[-1][0] + 2] in {(OPENS,), ()}]
    assert len(ended) >= len(played) - users - (2 if finite else 0)


def test_a_user_who_thinks_goes_on_though_the_server_hangs_up() -> None:
    """With the same conversation, on a new connection, when the pause is over."""
    simulation = Simulation(plan(Closed(1), requests=12))

    def serve(sent: Sent) -> Reply:
        (slot,) = simulation.slots
        if sent.payload.startswith(b"6"):
            simulation.at(sent.at_ns + 12 * MS, slot.hang_up)
        return Reply(10 * MS)

    simulation.serve = serve
    simulation.run()
    assert simulation.errors == {}
    (turns,) = (turns for turns in conversations(simulation.sent) if [payload for payload, _ in turns] == [6, 7])
    assert turns[1][1].at_ns - turns[0][1].at_ns == 30 * MS


def test_engines_share_conversations_without_a_number_in_common() -> None:
    """Each plays all of them in turn, from another one on."""
    numbers: list[bytes] = []
    for part, first in ((0, {0, 1, 2}), (1, {4, 5})):
        sent = Simulation(plan(Closed(4), nanoseconds=1000 * MS, parts=2, part=part)).run().sent
        played = conversations(sent)
        assert played[0][0][0] in first
        openings = [turns[0][0] for turns in played if PAUSES_NS[turns[0][0]] == OPENS]
        counts = [openings.count(index) for index in (0, 3, 4, 6)]
        # Users' first conversations begin anywhere.
        assert max(counts) - min(counts) <= 2
        numbers += [turns[0][1].payload.split()[1] for turns in played]
    assert len(set(numbers)) == len(numbers)
