"""The loads of other tools' files, as a side of a comparison knows them: each file is a server start."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.compare.loads import LEAST, NO_SAMPLES, LoadKey, MeasuredLoad, SessionSample
from pytest_gpuserve.comparison.baseline_store import differences
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.metric import METRICS, log_cost
from pytest_gpuserve.measure.work import SAME_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpuserve.compare.bench import BenchRun

UNKNOWN: Final = "unknown"

UNTOLD: Final = (
    "whether it was one machine, as fast and as idle for each file",
    "whether each file is of a fresh server start",
    "whether the client was late or busy",
    "whether prompts were the same, and answered from a cache",
    "which chunk was taken for the first token",
)


@dataclass(frozen=True, slots=True)
class BenchFile:
    """A file of another tool.

    Args:
        name: What people call it.
        digest: Of what is in it, which tells it from other files.
        runs: Its runs, in their order.
    """

    name: str
    digest: str
    runs: tuple[BenchRun, ...]


def bench_loads(files: Sequence[BenchFile]) -> Iterator[MeasuredLoad]:
    """Put together what files of one side know of each load.

    Args:
        files: Those of the side.

    Raises:
        UsageProblem: Two files are one, or what is one load by its rate and concurrency is not one work.
    """
    known: dict[str, str] = {}
    by_load: dict[str, list[tuple[BenchFile, BenchRun]]] = {}
    for file in files:
        if file.digest in known:
            raise UsageProblem(
                f"{known[file.digest]} and {file.name} are one measurement, which counts once",
                remedies=["remove one of them"],
            )
        known[file.digest] = file.name
        for run in file.runs:
            by_load.setdefault(run.load, []).append((file, run))
    for found in by_load.values():
        (first, run), *others = found
        for other, its in others:
            differs = (
                *token_differences(run.tokens, its.tokens, names=(first.name, other.name)),
                *differences(run.work, its.work, names=(first.name, other.name)),
            )
            if differs:
                raise UsageProblem(
                    f"{first.name} and {other.name} are of one side, but not of one work",
                    found="\n".join(differs),
                    remedies=["give each side a folder of the files of one work, one for each server start"],
                )
        yield _load(found)


def token_differences(then: Mapping[str, float], now: Mapping[str, float], *, names: tuple[str, str]) -> list[str]:
    """What differs between the tokens of two loads by more than ``SAME_TOKENS``, in words.

    Args:
        then: Of the first, by direction.
        now: Of the second.
        names: What the two are called.
    """
    found = []
    for name in sorted({*then, *now}):
        one, other = then.get(name), now.get(name)
        if one is None or other is None or abs(one - other) > SAME_TOKENS * max(one, other):
            shown = [UNKNOWN if each is None else f"{each:.6g}" for each in (one, other)]
            found.append(f"{name}: {names[0]} has {shown[0]}, {names[1]} has {shown[1]}")
    return found


def _load(found: Sequence[tuple[BenchFile, BenchRun]]) -> MeasuredLoad:
    runs = [run for _, run in found]
    samples = {name: tuple(_samples(name, found)) for name in METRICS}
    samples = {name: each for name, each in samples.items() if each}
    names = {name for run in runs for name in run.tokens}
    return MeasuredLoad(
        key=LoadKey(UNKNOWN, runs[0].work["written by"], runs[0].load),
        values={name: METRICS[name].value_at(fmean(each.y for each in its)) for name, its in samples.items()},
        samples=samples,
        unsampled=NO_SAMPLES,
        workload=runs[0].work,
        devices=(),
        machines=({"id": UNKNOWN},),
        tolerances={},
        asked=frozenset(samples),
        problems=tuple(f"{file.name}: {problem}" for file, run in found for problem in run.problems),
        tokens={name: fmean(run.tokens[name] for run in runs if name in run.tokens) for name in names},
        untold=tuple(dict.fromkeys((*UNTOLD, *(each for run in runs for each in run.untold)))),
    )


def _samples(name: str, found: Sequence[tuple[BenchFile, BenchRun]]) -> Iterator[SessionSample]:
    """What each file knows of a metric; runs of one file share its start, so they are one sample."""
    metric = METRICS[name]
    for at in dict.fromkeys(file.digest for file, _ in found):
        runs = [run for file, run in found if file.digest == at and run.values.get(name, 0.0) >= LEAST]
        if runs:
            y = fmean(log_cost(metric, run.values[name]) for run in runs)
            count = min(run.gaps if name.startswith("itl.") else run.requests for run in runs)
            # All files of a side share an occasion: nobody knows whether they were written on several.
            yield SessionSample(UNKNOWN, "", at, y, u=0.0, starts=1, requests=count)
