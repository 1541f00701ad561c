"""Ticks of several load engines, combined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.measure.window import AT_THE_END, AnswerCount, Window, sums

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping


def together(ticks: Mapping[str, Window]) -> Window:
    """Combine the ticks of several workers for the same time; exact, and it keeps each worker's own.

    Its length is their average. If clocks drifted apart, each engine's counts still belong to one tick's time, not to
    the time from the first begin to the last end. Only the last tick of a load is as long as the longest one.

    Args:
        ticks: By the workers' names, in the order of their parts; `aligned`.
    """
    parts = list(ticks.values())
    ends = [tick.end_ns for tick in parts]
    alone = {name: msgspec.structs.replace(tick, answers=[]) for name, tick in ticks.items()}
    last = any(tick.last for tick in parts)
    return Window(
        number=max(tick.number for tick in parts),
        begin_ns=sum(tick.begin_ns for tick in parts) // len(parts),
        end_ns=max(ends) if last else sum(ends) // len(ends),
        answers=_joined(answer for tick in parts for answer in tick.answers),
        last=all(tick.last for tick in parts),
        workers=msgspec.msgpack.encode(alone),
        **{
            name: (max if name.startswith("oldest") else sum)(getattr(tick, name) for tick in parts)
            for name in AT_THE_END
        },
        **sums(parts),
    )


def aligned(ticks: Mapping[str, Window], read: Callable[[Collection[str]], Mapping[str, Window]]) -> dict[str, Window]:
    """Read on until no worker is behind one that has paused, whose tick is several of the others'.

    Args:
        ticks: The next tick of each worker, by name.
        read: Reads the following tick of each worker with one of these names.
    """
    found = dict(ticks)
    while True:
        number = max(tick.number for tick in found.values())
        behind = [name for name, tick in found.items() if tick.number < number and not tick.last]
        if not behind:
            return found
        for name, tick in read(behind).items():
            answers = _joined([*found[name].answers, *tick.answers])
            found[name] = msgspec.structs.replace(found[name] + tick, answers=answers)


def shares(ticks: Iterable[Window], before: Mapping[str, Window] | None = None) -> dict[str, Window]:
    """Add up each worker's ticks, oldest first; empty for a single engine.

    Args:
        ticks: Ticks from the engines of a load.
        before: Each worker's sum before these.
    """
    found = dict(before or {})
    for tick in ticks:
        if tick.workers:
            for name, part in msgspec.msgpack.decode(tick.workers, type=dict[str, Window]).items():
                found[name] = found.get(name, Window()) + part
    return found


def _joined(answers: Iterable[AnswerCount]) -> list[AnswerCount]:
    same: dict[tuple[int, bytes], AnswerCount] = {}
    for answer in answers:
        key = (answer.index, answer.body)
        known = same.get(key)
        same[key] = (
            answer if known is None else AnswerCount(*key, known.count + answer.count, min(known.number, answer.number))
        )
    return list(same.values())
