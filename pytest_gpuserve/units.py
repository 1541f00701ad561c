"""Units, limits in time, and the only functions that turn numbers into text.

Inside the package a time is in seconds (``float``, suffix ``_seconds`` or none in public results) or
nanoseconds (``int``, suffix ``_ns``).
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

s = 1.0
"""One second, so that a limit reads ``2 * s``."""

ms = 1e-3
"""One millisecond in seconds, so that a limit reads ``50 * ms``."""

us = 1e-6
"""One microsecond in seconds."""

MiB = 2.0**20
"""One mebibyte in bytes."""

GiB = 2.0**30
"""One gibibyte in bytes, so that a limit reads ``12 * GiB``."""


def utc_now() -> str:
    """This moment, for people and files: ISO 8601 in UTC, to the second. It is not used for durations."""
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Deadline:
    """A point in monotonic time, made with `Deadline.after`.

    Args:
        seconds: Its original allowance.
        end: The point by ``time.monotonic()``.
    """

    seconds: float
    end: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Make the deadline this many seconds from now."""
        return cls(seconds, time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left; 0 after it."""
        return max(0.0, self.end - time.monotonic())

    def allowed(self) -> float:
        """Seconds that one more step may take.

        Raises:
            TimeoutError: The deadline has passed.
        """
        remaining = self.remaining()
        if not remaining:
            raise TimeoutError
        return remaining

    def expired(self) -> bool:
        """Whether it has passed."""
        return self.remaining() == 0


def digest(text: str) -> str:
    """Identify a text without revealing it: baselines are public, and a header or a variable may hold a token."""
    # A variable may hold bytes that are not characters, such as a path of another encoding.
    hashed = hashlib.sha256(text.encode(errors="surrogateescape"))
    return f"sha256:{hashed.hexdigest()[:16]}"


def format_seconds(seconds: float) -> str:
    """Write a duration with three significant digits: ``12.3 ms``, ``870 us``, ``4.50 s``, ``2 min 5 s``."""
    if not math.isfinite(seconds):
        return str(seconds)
    if abs(seconds) >= 120:
        minutes, rest = divmod(round(abs(seconds)), 60)
        shown = f"{minutes} min {rest} s" if rest else f"{minutes} min"
        return f"-{shown}" if seconds < 0 else shown
    scaled = _scaled(seconds, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")))
    return scaled or (f"{seconds / 1e-9:.0f} ns" if seconds else "0 s")


def format_rate(per_second: float) -> str:
    """Write a rate: ``2147/s``."""
    return f"{_three_digits(per_second)}/s"


def format_joules(joules: float) -> str:
    """Write an energy with three significant digits: ``12.5 J``, ``43.0 mJ``, ``2.10 kJ``."""
    return _scaled(joules, ((1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "uJ"))) or f"{joules:.3g} J"


def format_bytes(count: float) -> str:
    """Write a size with three significant digits, in powers of 1024: ``13.2 GiB``, ``850 MiB``, ``12 B``."""
    return _scaled(count, ((2.0**40, "TiB"), (GiB, "GiB"), (MiB, "MiB"), (2.0**10, "KiB"))) or f"{count:.3g} B"


def format_ratio(value: float) -> str:
    """Write a plain ratio with two decimals: ``18.42``."""
    return f"{value:.2f}"


def format_fraction(fraction: float) -> str:
    """Write a share as percent: ``0.05`` is ``5 %``, ``0.0125`` is ``1.2 %``."""
    percent = fraction * 100
    if not math.isfinite(percent) or abs(percent) >= 1e6:
        return f"{percent:.3g} %"
    # Adding zero turns the -0.0 of a tiny negative share into 0.0.
    rounded = round(percent, 1) + 0.0
    return f"{rounded:.0f} %" if math.isclose(percent, round(percent), abs_tol=0.005) else f"{rounded:.1f} %"


def format_change(fraction: float) -> str:
    """Write a signed change as percent: ``-0.231`` is ``-23.1 %``."""
    percent = fraction * 100
    return f"{percent:+.3g} %" if abs(percent) >= 1e6 else f"{percent:+.1f} %"


def format_value(value: float, unit: str) -> str:
    """Write a metric's value in its unit (``s``, ``1/s``, ``J``, ``B`` or a plain ratio)."""
    return _FORMATS.get(unit, format_ratio)(value)


_FORMATS: Final[Mapping[str, Callable[[float], str]]] = {
    "s": format_seconds,
    "1/s": format_rate,
    "J": format_joules,
    "B": format_bytes,
}


def _scaled(value: float, units: Iterable[tuple[float, str]]) -> str:
    """A number in the largest of these units that makes it at least one; empty for a number below all of them."""
    if not math.isfinite(value):
        return ""
    for scale, unit in units:
        # Compared after rounding to three digits, so that 0.9999 s is not written as 1000 ms.
        if abs(float(f"{value / scale:.3g}")) >= 1:
            return f"{_three_digits(value / scale)} {unit}"
    return ""


def _three_digits(value: float) -> str:
    # Zero, infinity and NaN as well.
    if not 1e-3 <= abs(value) < 1e9:
        return f"{value:.3g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(float(f"{value:.3g}")))))
    return f"{value:.{decimals}f}"
