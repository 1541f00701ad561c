"""A round of two servers that are searched for their capacity: a fresh start of each, one after the other."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gpuserve.experiment.capacity.start import SearchedStart
from pytest_gpuserve.load.answers import AnswerCheck
from pytest_gpuserve.load.run import answer_reasons
from pytest_gpuserve.measure.rounds import ARMS, ArmResult, Block, Round, of_arm
from pytest_gpuserve.units import utc_now

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pytest_gpuserve.experiment.capacity.shape import SearchShape
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import Terms
    from pytest_gpuserve.experiment.telemetry import TelemetryMonitor
    from pytest_gpuserve.experiment.watch import Progress
    from pytest_gpuserve.gate.reason import Reason
    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.measure.window import Start
    from pytest_gpuserve.servers.instance import Instance


@dataclass(frozen=True, slots=True)
class SearchedUp:
    """A server that runs, to be searched.

    Args:
        target: What is sent.
        instance: The server.
        monitor: Looks after the cards.
        problems: What is wrong with it already, so that it is not searched.
    """

    target: Target
    instance: Instance
    monitor: TelemetryMonitor
    problems: list[Reason] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Searched:
    """What came of a server."""

    start: Start
    answers: int
    answers_checked: int
    problems: list[Reason]


def round_of_searches(
    up: Callable[[Arm], AbstractContextManager[SearchedUp]],
    terms: Terms,
    shape: SearchShape,
    progress: Progress,
    *,
    number: int,
) -> Round:
    """Search a fresh start of each server, in an order by chance: that is a round.

    Args:
        up: Starts a server, which ends with the block.
        terms: How the two are compared.
        shape: The search.
        progress: Told how it gets on.
        number: Of the round, for its coin.

    Raises:
        BaseFailed: The base could not be started.
        ServerFailed: The candidate could not be started.
        LoadFailed: A load could not be begun.
        KeyboardInterrupt: By Ctrl-C.
    """
    coin = random.Random(f"{terms.seed} {number}")  # noqa: S311 -- a fair coin, not a secret
    order = ARMS if coin.random() < 0.5 else ARMS[::-1]
    # Arrivals are others in each round, and the same for both servers.
    shape = replace(shape, seed=shape.seed + coin.randrange(1 << 30))
    at = utc_now()
    found: dict[Arm, _Searched] = {}
    problems: list[Reason] = []
    for arm in order:
        found[arm] = _searched(up, arm, shape, progress)
        problems += of_arm(arm, found[arm].problems)
        if problems:
            break
    whole = not problems and all(searched.start.windows for searched in found.values())
    windows = tuple(searched.start.windows[0] for searched in found.values()) if whole else ()
    return Round(
        blocks=(Block(order, windows),) if whole else (),
        first=order[0],
        sides={arm: _side(found[arm]) if arm in found else ArmResult(()) for arm in ARMS},
        at=at,
        by_turns=True,
        foreign_cores=max(searched.start.foreign_cores for searched in found.values()),
        problems=tuple(problems),
    )


def _searched(
    up: Callable[[Arm], AbstractContextManager[SearchedUp]], arm: Arm, shape: SearchShape, progress: Progress
) -> _Searched:
    with up(arm) as server:
        target = server.target
        check = AnswerCheck((request.expect for request in target.requests), wants_all=shape.check == "all")
        searching = SearchedStart(server.instance, target, shape, check, progress, server.monitor)
        searching.problems.extend(server.problems)
        start = searching.measure()
    if searching.interrupted:
        raise KeyboardInterrupt
    # Now, for some trouble shows only at the server's end.
    problems = [*searching.problems, *server.monitor.problems()]
    if not problems:
        problems += answer_reasons(check, [])
    return _Searched(start, check.answers, check.checked, problems)


def _side(searched: _Searched) -> ArmResult:
    start = searched.start
    return ArmResult(
        (start.cold_start_seconds,),
        start.client,
        answers=searched.answers,
        answers_checked=searched.answers_checked,
        cold_start_parts=start.cold_start_parts,
        settings=start.settings,
        telemetry=start.telemetry,
        idle_watts=start.idle_watts,
        rejected=start.rejected,
        searches=() if start.search is None else (start.search,),
    )
