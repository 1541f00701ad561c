"""Values that were seen now and then, and what lies between two moments of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

NS: Final = 1_000_000_000

Point = tuple[int, float]
"""When a value was seen, in ns, and the value."""


def covers(times_ns: Sequence[int], begin_ns: int, end_ns: int, gap_ns: int) -> bool:
    """Whether every moment of a stretch lies between two times, in order, that are at most a gap apart."""
    first, last = bisect_right(times_ns, begin_ns) - 1, bisect_left(times_ns, end_ns)
    if first < 0 or last == len(times_ns):
        return False
    return all(later - earlier <= gap_ns for earlier, later in pairwise(times_ns[first : last + 1]))


def rise_between(seen: Sequence[Point], begin_ns: int, end_ns: int, gap_ns: int) -> float | None:
    """Find by how much a counter rose, its values at the two ends being interpolated linearly.

    Between the two ends it may have been seen as seldom as you like.

    Returns:
        None where an end does not lie between two points that are at most ``gap_ns`` apart, or the counter fell
        meanwhile.
    """
    begin, end = value_at(seen, begin_ns, gap_ns), value_at(seen, end_ns, gap_ns)
    if begin is None or end is None:
        return None
    # It may have been reset between the last point in the stretch and the first one after it, too.
    first, last = bisect_right(seen, begin_ns, key=_when) - 1, bisect_left(seen, end_ns, key=_when)
    if any(later < earlier for (_, earlier), (_, later) in pairwise(seen[first : last + 1])):
        return None
    return max(0.0, end - begin)


def integral_between(seen: Sequence[Point], begin_ns: int, end_ns: int, gap_ns: int) -> float | None:
    """Integrate a value over time, in its unit times seconds, by the trapezoidal rule.

    Returns:
        None where any part of the stretch does not lie between two points that are at most ``gap_ns`` apart.
    """
    begin, end = value_at(seen, begin_ns, gap_ns), value_at(seen, end_ns, gap_ns)
    if begin is None or end is None or not covers([at_ns for at_ns, _ in seen], begin_ns, end_ns, gap_ns):
        return None
    inside = seen[bisect_right(seen, begin_ns, key=_when) : bisect_left(seen, end_ns, key=_when)]
    course = [(begin_ns, begin), *inside, (end_ns, end)]
    return sum(
        (one + other) / 2 * ((later_ns - earlier_ns) / NS) for (earlier_ns, one), (later_ns, other) in pairwise(course)
    )


def value_at(seen: Sequence[Point], at_ns: int, gap_ns: int) -> float | None:
    """Interpolate a value linearly; None where the moment does not lie between two points close enough."""
    index = bisect_left(seen, at_ns, key=_when)
    if index == len(seen):
        return None
    later_ns, later = seen[index]
    if later_ns == at_ns:
        return later
    if index == 0:
        return None
    earlier_ns, earlier = seen[index - 1]
    if later_ns - earlier_ns > gap_ns:
        return None
    return earlier + (later - earlier) * ((at_ns - earlier_ns) / (later_ns - earlier_ns))


def _when(point: Point) -> int:
    return point[0]
