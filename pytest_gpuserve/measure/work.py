"""Check that two measurements, or the parts of one, did the same work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.points import ASK_FOR_USAGE
from pytest_gpuserve.measure.window import CACHED_TOKENS, PREEMPTIONS, PROMPT_TOKENS, Window
from pytest_gpuserve.units import format_change, format_fraction
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.student import t_quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.measure.window import Streams

SAME_TOKENS: Final = 0.01
"""Share by which the mean tokens of an answer may differ between two builds that did the same work."""

SAME_CHUNKS: Final = 0.2
"""The same for the mean chunks of an answer. A server may join tokens that wait to be sent, as vLLM does. An imitation
of it on a busy host sent 13 % fewer chunks in one start than in another."""

SAME_BYTES: Final = 0.25
"""Share of the larger one by which the mean sizes of an answer may differ between two builds."""

SAME_CACHED: Final = 0.05
"""Largest difference in the cached share of prompt tokens between two parts of a load."""

CHANCE: Final = 0.0005
"""Level, in each direction, of a claim that answers of varying lengths differ."""

FEWEST_WINDOWS: Final = 4
"""Fewest windows that show how much their answers vary."""

FEWEST_REQUESTS: Final = 30
"""Fewest requests; with fewer, chance decides which of their prompts are in the server's cache."""


@dataclass(frozen=True, slots=True)
class MeanCount:
    """A ratio of sums over windows, such as tokens an answer.

    Args:
        value: The ratio.
        squared_error: Squared standard error of the ratio, from its variation between windows.
        windows: Number of windows that report it.
    """

    value: float
    squared_error: float
    windows: int

    @classmethod
    def of(cls, counted: Sequence[tuple[int, int]]) -> MeanCount | None:
        """Ratio of each window's numerator and denominator; None for too few windows, or a zero denominator."""
        whole = sum(below for _, below in counted)
        if len(counted) < FEWEST_WINDOWS or not whole:
            return None
        value = sum(above for above, _ in counted) / whole
        # Standard error of a ratio of sums (Cochran, Sampling Techniques, 1977, 6.3).
        squares = math.fsum((above - value * below) ** 2 for above, below in counted)
        return cls(value, len(counted) / (len(counted) - 1) * squares / whole**2, len(counted))

    def is_apart(self, other: MeanCount, least: float) -> bool:
        """Whether both differ beyond chance and by more than this."""
        apart, both = abs(self.value - other.value), self.squared_error + other.squared_error
        if apart <= least:
            return False
        if not both:
            return True
        # Welch, Biometrika 34, 1947, 28-35.
        dof = both**2 / sum(each.squared_error**2 / (each.windows - 1) for each in (self, other))
        return apart > t_quantile(CHANCE, dof) * math.sqrt(both)


def unlike_work(before: Sequence[Streams | None], now: Sequence[Streams | None]) -> Reason | None:
    """Reason if answers differ in their number of tokens from the reference's, or more of them report it in one build.

    Answers that do not report it are compared by their number of chunks.

    Args:
        before: Windows of the reference.
        now: Windows that are compared with it.

    Returns:
        None if they do not differ.
    """
    (silent, answers), (others_silent, others) = _silent(before), _silent(now)
    told, found_told = (
        MeanCount.of([(each.with_usage, each.ttft.total) for each in side if each is not None])
        for side in (before, now)
    )
    # Even where answers without usage are usual, a build could hide shorter ones among more of them.
    is_apart = told is not None and found_told is not None and found_told.is_apart(told, SAME_TOKENS)
    if is_apart or (answers and others and bool(silent) is not bool(others_silent)):
        return Reason(
            ReasonKind.WORK_UNKNOWN,
            f"unknown work: {silent} of {answers} answers of the reference reported no usage, and {others_silent} of"
            f" {others} of the other server. Two builds are comparable if both report usage, or neither does",
        )
    for lengths, unit, most_apart, step in (
        (_told, "tokens", SAME_TOKENS, "give all answers one length: server.chat(..., ignore_eos=True)"),
        (_untold, "chunks", SAME_CHUNKS, f"let the server report usage, and {ASK_FOR_USAGE}"),
    ):
        # A window without such an answer says nothing.
        then, found = (
            MeanCount.of([counted for each in side if each is not None and all(counted := lengths(each))])
            for side in (before, now)
        )
        if then and found and found.is_apart(then, most_apart * max(then.value, found.value)):
            return Reason(
                ReasonKind.UNLIKE_WORK,
                f"unlike work: an answer has {found.value:.4g} {unit}, and {then.value:.4g} in the reference"
                f" ({format_change(found.value / then.value - 1)}); {step}",
            )
    return None


def _told(streams: Streams) -> tuple[int, int]:
    """Tokens of the answers that report them, and these answers."""
    return streams.usage_tokens, streams.with_usage


def _untold(streams: Streams) -> tuple[int, int]:
    """Chunks of the other answers, and these answers."""
    return streams.silent_chunks, streams.ttft.total - streams.with_usage


def unlike_answers(before: Sequence[Window], now: Sequence[Window]) -> Reason | None:
    """Reason if unchecked answers differ in their size from the reference's, as those of a server that fails with 200.

    Args:
        before: Windows of the reference.
        now: Windows that are compared with it.

    Returns:
        None if they do not differ, or if ``expect=`` checks them.
    """
    then, found = (
        MeanCount.of([(each.sized_bytes, each.sized) for each in side if each.sized and each.streams is None])
        for side in (before, now)
    )
    if then is None or found is None or not found.is_apart(then, SAME_BYTES * max(then.value, found.value)):
        return None
    return Reason(
        ReasonKind.UNLIKE_ANSWERS,
        f"unlike answers: an answer has {found.value:.4g} bytes on average, and {then.value:.4g} in the reference. Say"
        " which answers are right: server.post(..., expect=...)",
    )


def unknown_work(*sides: Iterable[Streams | None]) -> tuple[Reason, ...]:
    """Reason if streams do not report their token count; empty if all do, or the load has no streams.

    Args:
        sides: Windows of each build.
    """
    silent, answers = _silent(each for side in sides for each in side)
    if not silent:
        return ()
    who = f"{silent} of {answers} answers" if silent < answers else "answers"
    return (
        Reason(
            ReasonKind.WORK_UNKNOWN,
            f"{who} reported no usage, so it is unknown whether both servers answered with as many tokens",
        ),
    )


def _silent(windows: Iterable[Streams | None]) -> tuple[int, int]:
    """Number of answers that do not report their token count, and of all answers."""
    known = [each for each in windows if each is not None]
    answers = sum(each.ttft.total for each in known)
    return answers - sum(each.with_usage for each in known), answers


def unsteady_cache(parts: Iterable[Sequence[Window]]) -> Reason | None:
    """Reason if a server had more of the prompts in its prefix cache in one part of a load than in another.

    The measurement then depends on the progress of the load, and so on the server's speed. A difference between builds
    is not such a case, because the build causes it.

    Args:
        parts: Windows of each part: the halves of a start, or the starts of a session.

    Returns:
        None if not, or if unknown.
    """
    shares = [
        MeanCount.of(counted)
        for windows in parts
        if sum(window.requests for window in windows) >= FEWEST_REQUESTS
        and len(counted := _prompts(windows)) == len(windows)
    ]
    known = sorted((share for share in shares if share is not None), key=lambda share: share.value)
    if not known or not known[-1].is_apart(known[0], SAME_CACHED):
        return None
    return Reason(
        ReasonKind.UNLIKE_WORK,
        f"unlike work within one load: {format_fraction(known[0].value)} of the prompt tokens came from the prefix"
        f" cache in one part of it, {format_fraction(known[-1].value)} in another. Send prompts that the server has"
        " not seen: server.chat(prompts(...)); or warm it up until it knows all: load(..., warmup_seconds=...)",
    )


def cached_share(windows: Sequence[Window]) -> float | None:
    """Return the share of the prompt tokens that came from the prefix cache; None unless the server counts both."""
    counted = _prompts(windows)
    prompts = sum(tokens for _, tokens in counted)
    return sum(cached for cached, _ in counted) / prompts if prompts else None


def _prompts(windows: Iterable[Window]) -> list[tuple[int, int]]:
    """Cached and all prompt tokens of each window that knows both."""
    tallies = [window.counters.tallies for window in windows if window.counters is not None]
    return [
        (each[CACHED_TOKENS], each[PROMPT_TOKENS]) for each in tallies if each.keys() >= {CACHED_TOKENS, PROMPT_TOKENS}
    ]


def preemptions_of_thousand(windows: Sequence[Window]) -> float | None:
    """Return the number of preemptions in 1000 requests; None if the server does not count them."""
    total = Window.pooled(windows)
    preemptions = None if total.counters is None else total.counters.tallies.get(PREEMPTIONS)
    return 1000 * preemptions / total.requests if preemptions is not None and total.requests else None
