"""What the host's cores have worked, counted from the kernel's fields."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.device.cpu import busy_seconds

FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
TICKS = st.integers(min_value=0, max_value=10**10)
"""The kernel's hundredths of a second: up to three years of one core."""

LATER = st.integers(min_value=0, max_value=10**4)


@given(st.lists(TICKS, min_size=10, max_size=10), st.lists(LATER, min_size=10, max_size=10))
def test_the_count_never_falls(ticks: list[int], later: list[int]) -> None:
    """Whatever the fields rise by, idle time alone too, the count of a later reading is not below the earlier one's."""
    first = {name: number / 100 for name, number in zip(FIELDS, ticks, strict=True)}
    second = {name: (number + more) / 100 for name, number, more in zip(FIELDS, ticks, later, strict=True)}
    assert busy_seconds(second) >= busy_seconds(first)


def test_an_idle_host_has_not_worked() -> None:
    """Two readings of a real host that only idled in between, which a sum less its idle time had step back."""
    worked = {"user": 77012.97, "nice": 1361.75, "system": 15212.58, "iowait": 675.26, "irq": 0.0}
    worked |= {"softirq": 1215.92, "steal": 3354.46, "guest": 0.0, "guest_nice": 0.0}
    assert busy_seconds({**worked, "idle": 75057.75}) == busy_seconds({**worked, "idle": 75057.73})


def test_only_work_is_counted() -> None:
    """User, nice, system and both kinds of interrupts count; idle, waiting, stolen and guests' time do not."""
    assert busy_seconds({name: float(2**power) for power, name in enumerate(FIELDS)}) == 1 + 2 + 4 + 32 + 64
    assert busy_seconds({"user": 3.0, "nice": 0.5, "system": 1.0, "idle": 7.0}) == 4.5
