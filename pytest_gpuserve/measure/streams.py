"""What came of streams of tokens, and which of their times are known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.gate.student import t_quantile
from pytest_gpuserve.measure.histogram import Histogram, merge
from pytest_gpuserve.units import format_change

if TYPE_CHECKING:
    from collections.abc import Iterable

ONE_READ_SHARE: Final = 0.2
"""Of the gaps beyond a quantile, on its smaller side, as many at most may lie within one read: a fifth."""


@dataclass(frozen=True, slots=True)
class Streams:
    """What came of the streams of a window: a request counts where it ends, a chunk where it arrives.

    Args:
        ttft: Of each request, the time to the first chunk with content; to the end where there was none.
        itl: The gaps between such chunks.
        tpot: Of each request that says that it has two tokens or more, the time from the first such chunk to the end,
            over the tokens but the first.
        tokens: The chunks that arrived, and of requests that say how many tokens they have the difference. In a short
            window it may be below 0.
        with_usage: Requests that say how many tokens they have (``usage.completion_tokens``).
        usage_tokens: The sum of these.
    """

    ttft: Histogram = field(default_factory=lambda: Histogram({}))
    itl: Histogram = field(default_factory=lambda: Histogram({}))
    tpot: Histogram = field(default_factory=lambda: Histogram({}))
    tokens: int = 0
    with_usage: int = 0
    usage_tokens: int = 0

    @property
    def has_usage(self) -> bool:
        """Whether every request says how many tokens it has."""
        return self.with_usage == self.ttft.total > 0

    @classmethod
    def pooled(cls, parts: Iterable[Streams | None]) -> Streams | None:
        """Add up what came of several windows; None where there was no stream."""
        known = [part for part in parts if part is not None]
        if not known:
            return None
        return cls(
            ttft=merge(part.ttft for part in known),
            itl=merge(part.itl for part in known),
            tpot=merge(part.tpot for part in known),
            tokens=sum(part.tokens for part in known),
            with_usage=sum(part.with_usage for part in known),
            usage_tokens=sum(part.usage_tokens for part in known),
        )


def within_one_read(times: Histogram) -> float:
    """Return which share of the times between a stream's chunks lies within one read.

    Chunks that come in one read have one time of arrival, and in no other way are two a nanosecond apart.
    """
    return times.counts.get(0, 0) / times.total if times.total else 0.0


def is_quantile_known(times: Histogram, q: float) -> bool:
    """Whether a quantile of the times between chunks is known.

    A gap within one read counts as nothing, and the one before it as longer than it was. Their sum, and so the mean, is
    right all the same.
    """
    # Rounded: 1 - 0.9 is not quite 0.1.
    return within_one_read(times) <= round(ONE_READ_SHARE * min(q, 1 - q), 9)


SAME_TOKENS: Final = 0.01
"""Share by which the mean tokens of an answer may differ between two builds that did the same work."""

CHANCE: Final = 0.0005
"""So likely may a difference between answers of many lengths be told in each direction that is chance."""

FEWEST_WINDOWS: Final = 4
"""Of fewer windows nobody knows how much their answers vary."""


@dataclass(frozen=True, slots=True)
class TokensOfAnswer:
    """How many tokens an answer has, by ``usage``.

    Args:
        mean: Over all answers.
        squared_error: Of the mean, by how it varies from window to window.
        windows: That tell it.
    """

    mean: float
    squared_error: float
    windows: int

    @classmethod
    def of(cls, windows: Iterable[Streams | None]) -> TokensOfAnswer | None:
        """Those of some windows; None where not every answer says it, or they are too few."""
        known = [each for each in windows if each is not None and each.ttft.total]
        answers, tokens = sum(each.with_usage for each in known), sum(each.usage_tokens for each in known)
        if len(known) < FEWEST_WINDOWS or not answers or not all(each.has_usage for each in known):
            return None
        mean = tokens / answers
        # Of a ratio of sums (Cochran, Sampling Techniques, 1977, 6.3).
        squares = math.fsum((each.usage_tokens - mean * each.with_usage) ** 2 for each in known)
        return cls(mean, len(known) / (len(known) - 1) * squares / answers**2, len(known))

    def is_unlike(self, other: TokensOfAnswer) -> bool:
        """Whether answers of another build are of another length, beyond chance and by more than `SAME_TOKENS`."""
        apart, both = abs(self.mean - other.mean), self.squared_error + other.squared_error
        if apart <= SAME_TOKENS * max(self.mean, other.mean):
            return False
        if not both:
            return True
        # Welch, Biometrika 34, 1947, 28-35.
        dof = both**2 / sum(each.squared_error**2 / (each.windows - 1) for each in (self, other))
        return apart > t_quantile(CHANCE, dof) * math.sqrt(both)


def unlike_work(before: Iterable[Streams | None], now: Iterable[Streams | None]) -> Reason | None:
    """Tell that answers have another number of tokens than those that they are compared with; None if not, or unknown.

    Args:
        before: The windows of the reference.
        now: The windows that are compared with it.
    """
    then, found = TokensOfAnswer.of(before), TokensOfAnswer.of(now)
    if then is None or found is None or not found.is_unlike(then):
        return None
    return Reason(
        ReasonKind.UNLIKE_WORK,
        f"unlike work: an answer has {found.mean:.4g} tokens, and {then.mean:.4g} in what it is compared with"
        f" ({format_change(found.mean / then.mean - 1)}); give all answers one length:"
        " server.chat(..., ignore_eos=True)",
    )
