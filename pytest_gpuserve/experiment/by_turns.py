"""A round of two servers of which only one runs at a time: four fresh starts, one after the other."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.device.cpu import cores_taken_by_others, read_cpu
from pytest_gpuserve.experiment.disturbed import Disturbed
from pytest_gpuserve.experiment.server_arm import Pace, ServerArm
from pytest_gpuserve.experiment.telemetry import side_with_telemetry
from pytest_gpuserve.experiment.watch import our_processes
from pytest_gpuserve.gate.sequential import BLOCKS
from pytest_gpuserve.measure.counters import added
from pytest_gpuserve.measure.rounds import ABBA, ARMS, BAAB, Arm, ArmResult, Block, Round, of_arm
from pytest_gpuserve.measure.telemetry import merged
from pytest_gpuserve.measure.window import Client
from pytest_gpuserve.units import utc_now

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.experiment.shape import Terms
    from pytest_gpuserve.experiment.telemetry import TelemetrySource
    from pytest_gpuserve.gate.reason import Reason
    from pytest_gpuserve.measure.window import Window

TURNS_ALONE: Final = BLOCKS
"""Of servers that do not run at the same time a window is so many times as long: each needs a start of its own."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """What is kept of a server that was measured alone.

    Args:
        window: What was measured; None where there was trouble.
        side: What else is known of it.
        foreign_cores: Cores that others took meanwhile.
        problems: Why nothing may be concluded from it.
    """

    window: Window | None
    side: ArmResult
    foreign_cores: float
    problems: list[Reason]


def round_by_turns(
    start: Callable[[Arm, ExitStack], ServerArm], terms: Terms, telemetry_source: TelemetrySource, *, number: int
) -> Round:
    """Measure a block of four fresh starts, one after the other: that is a round.

    Args:
        start: Starts a server, which ends with the stack.
        terms: How the two are compared.
        telemetry_source: Who looks at the cards.
        number: Of the round, for its coins.

    Raises:
        ServerFailed: A server could not be started.
        LoadFailed: A load could not be begun.
    """
    coin = random.Random(f"{terms.seed} {number}")  # noqa: S311 -- a fair coin, not a secret
    order = ABBA if coin.random() < 0.5 else BAAB
    seed = terms.shape.seed + coin.randrange(1 << 30)
    at = utc_now()
    windows: list[Window] = []
    sides: dict[Arm, list[ArmResult]] = {arm: [] for arm in ARMS}
    problems: list[Reason] = []
    disturbed = Disturbed()
    foreign_cores = 0.0
    for arm in order:
        turn = _turn(start, arm, terms, telemetry_source, seed=seed, disturbed=disturbed)
        while turn is None and not problems:
            problems.extend(disturbed.invalid())
            turn = None if problems else _turn(start, arm, terms, telemetry_source, seed=seed, disturbed=disturbed)
        if turn is not None:
            foreign_cores = max(foreign_cores, turn.foreign_cores)
            sides[arm].append(turn.side)
            windows.extend([turn.window] if turn.window is not None else [])
            problems.extend(turn.problems)
        if problems:
            break
    whole = len(windows) == len(order)
    return Round(
        blocks=(Block(order, tuple(windows)),) if whole else (),
        first=order[0],
        sides={arm: replace(_joined(known), rejected=disturbed.reasons(arm)) for arm, known in sides.items()},
        at=at,
        by_turns=True,
        rejected=disturbed.again,
        foreign_cores=foreign_cores,
        problems=tuple(problems),
    )


def _turn(
    start: Callable[[Arm, ExitStack], ServerArm],
    arm: Arm,
    terms: Terms,
    telemetry_source: TelemetrySource,
    *,
    seed: int,
    disturbed: Disturbed,
) -> _Turn | None:
    """Measure a window of a fresh start; None where it is to be measured again."""
    with telemetry_source.monitor() as monitor:
        with ExitStack() as stack:
            server_arm = start(arm, stack)
            monitor.up(server_arm.instance)
            pace = server_arm.pace(terms.requests_wanted)
            # While it runs: what a server that has ended used would be taken for that of others.
            cpu = read_cpu(our_processes(server_arm.members()))
            window = server_arm.turn(Pace(pace.settle, pace.window * TURNS_ALONE), seed=seed)
            taken = cores_taken_by_others(cpu, read_cpu(our_processes(server_arm.members())))
            server_arm.rest()
            measured = [] if window is None else [window]
            conditions = [
                replace(condition, client=server_arm.disturbed(measured[0]))
                for condition in monitor.judge(measured, wait=True)
            ]
            if window is not None and not server_arm.problems and not any(condition.again for condition in conditions):
                server_arm.judge()
                conditions = [replace(condition, client=tuple(server_arm.disturbances)) for condition in conditions]
            again = disturbed.add([(arm, condition) for condition in conditions])
            for text in dict.fromkeys(text for condition in conditions for text in condition.unknown):
                monitor.note(f"telemetry unknown: {text}")
            side = side_with_telemetry(server_arm.side(), monitor, measured)
            problems = of_arm(arm, server_arm.problems)
        measured = list(monitor.with_cards(measured))
    problems += monitor.problems()
    if again and not problems:
        return None
    return _Turn(measured[0] if measured and not again else None, side, taken, problems)


def _joined(sides: list[ArmResult]) -> ArmResult:
    sizes: dict[str, int] = {}
    # There is none where the other one's first start was in trouble.
    last = sides[-1] if sides else ArmResult(())
    for side in sides:
        for size, count in side.batch_sizes.items():
            sizes[size] = sizes.get(size, 0) + count
    return ArmResult(
        cold_start_seconds=tuple(seconds for side in sides for seconds in side.cold_start_seconds),
        client=Client.pooled(side.client for side in sides),
        batch_sizes=sizes,
        answers=sum(side.answers for side in sides),
        answers_checked=sum(side.answers_checked for side in sides),
        cold_start_parts=last.cold_start_parts,
        settings=last.settings,
        counters=added([side.counters for side in sides if side.counters is not None]),
        telemetry=merged(side.telemetry for side in sides if side.telemetry is not None),
        idle_watts=last.idle_watts,
    )
