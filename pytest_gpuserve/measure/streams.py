"""What came of streams of tokens, and which of their times are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.histogram import Histogram, merge

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
        tpot: Of each request that says that it has two tokens or more, the time from the first such chunk to the last
            one, over the tokens but the first.
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
