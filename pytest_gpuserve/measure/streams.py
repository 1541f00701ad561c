"""Results of token streams, and which of their times are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.histogram import Histogram, merge

if TYPE_CHECKING:
    from collections.abc import Iterable

ONE_READ_SHARE: Final = 0.2
"""Largest share of the gaps beyond a quantile, on its smaller tail, that may lie within one read: a fifth."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Streams of a window: a request counts in the window of its end, a chunk in that of its arrival.

    Args:
        ttft: Time to the first chunk with content, for each request; to the end if it had none.
        itl: Gaps between such chunks.
        tpot: For each request that reports two tokens or more: the time from the first such chunk to the last one, over
            the number of later tokens.
        tokens: Chunks that arrived, corrected by the reported token counts. In a short window it may be below 0.
        with_usage: Requests that report their token count (``usage.completion_tokens``).
        usage_tokens: Sum of the reported counts.
    """

    ttft: Histogram = field(default_factory=lambda: Histogram({}))
    itl: Histogram = field(default_factory=lambda: Histogram({}))
    tpot: Histogram = field(default_factory=lambda: Histogram({}))
    tokens: int = 0
    with_usage: int = 0
    usage_tokens: int = 0

    @property
    def has_usage(self) -> bool:
        """Whether every request reports its token count."""
        return self.with_usage == self.ttft.total > 0

    @classmethod
    def pooled(cls, parts: Iterable[Streams | None]) -> Streams | None:
        """Add up the streams of several windows; None without streams."""
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
    """Return the share of the times between a stream's chunks that lies within one read.

    Chunks that come in one read have the same time of arrival; other chunks are never a nanosecond apart.
    """
    return times.counts.get(0, 0) / times.total if times.total else 0.0


def is_quantile_known(times: Histogram, q: float) -> bool:
    """Whether a quantile of the times between chunks is known.

    A gap within one read counts as zero, and the gap before it as longer than it was. Their sum, and so the mean, is
    right.
    """
    # Rounded: 1 - 0.9 is not quite 0.1.
    return within_one_read(times) <= round(ONE_READ_SHARE * min(q, 1 - q), 9)
