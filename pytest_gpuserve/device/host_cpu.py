"""The CPU time that the host's cores have worked, from the counters that its kernel keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# The kernel counts the time of guests of this host within user and nice already; stolen time nobody here has used.
_NOT_WORKED: Final = frozenset({"idle", "iowait", "steal", "guest", "guest_nice"})


def busy_seconds(seconds: Mapping[str, float]) -> float:
    """Count what all cores together have worked, for whomever; the count never falls between two readings.

    Idle time is left out before anything is added. Added and taken off again it would leave a rounding error that
    changes from reading to reading: the count of an idle host would step back, which means a counter begun anew.

    Args:
        seconds: The fields of `psutil.cpu_times()` by name, since the host started.
    """
    return sum(value for name, value in seconds.items() if name not in _NOT_WORKED)
