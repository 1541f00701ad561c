"""Load engines that are lost side by side make their round invalid; a load that never began is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.load.schedule import Poisson, Steps
from pytest_gpuserve.measure.rounds import ARMS
from pytest_gpuserve.verdict.reason import ReasonKind
from pytest_gpuserve.verdict.sequential import BLOCKS
from tests.experiment.stage import LOST, USERS, Stage, either_arm, told
from tests.support.reasons import said

if TYPE_CHECKING:
    from pytest_gpuserve.measure.rounds import Arm

OPEN, STEPS = (LoadShape(schedule, warmup_seconds=0.3) for schedule in (Poisson(1000.0), Steps(((4, 0.5),))))


@pytest.mark.parametrize(
    ("shape", "what", "number", "alone"),
    [
        pytest.param(USERS, "tick", 1, False, id="in the warm-up"),
        pytest.param(USERS, "tick", 1, True, id="in the warm-up of a start alone"),
        pytest.param(USERS, "begin", 0, False, id="as a turn begins"),
        pytest.param(USERS, "tick", 6, False, id="in a turn"),
        pytest.param(USERS, "tick", 6, True, id="in a start alone"),
        pytest.param(OPEN, "halt", 1, False, id="before an open loop begins"),
        pytest.param(STEPS, "halt", 2, False, id="after what is measured as a whole"),
        pytest.param(STEPS, "halt", 2, True, id="after a whole start alone"),
    ],
)
@either_arm
def test_a_load_that_is_lost_makes_its_round_invalid(
    stage: Stage, arm: Arm, shape: LoadShape, what: str, number: int, *, alone: bool
) -> None:
    """The reason names the server and the worker; the servers end, no turn follows, and nothing else is judged."""
    stage.lost, stage.compiling = (arm, what, number), {arm}
    both = stage.pair(shape, alone=alone)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert stage.is_lost
    assert [problem.kind for problem in measured.problems] == [ReasonKind.LOAD_LOST]
    assert said(measured.problems) == (told(arm, LOST),)
    assert measured.blocks == (0 if alone else len(stage.turns) // 4) < BLOCKS
    assert set(measured.starts) == set(ARMS)
    assert (stage.running, both.blocks_of_open_round) == ([], 0)
    assert "begin" not in {each for _, each in stage.asked[stage.lost_at :]}
    # By turns no other start is made for a round that is lost.
    assert stage.starts[-1] == arm if alone else sorted(stage.starts) == list(ARMS)
    # Another round has engines of its own, and is sound.
    stage.lost, stage.compiling = None, set()
    both.measure(BLOCKS)
    assert both.rounds[1].problems == ()
    assert both.rounds[1].blocks == (1 if alone else BLOCKS)
