"""Pauses of an engine, by its beats: all pauses are counted, and other delays are not."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.load.engine.beats import ON_TIME_NS, Beats, BusyClock
from pytest_gpuserve.load.wire import BEAT_NS

MS = 1_000_000
TIMER_NS = 60_000


def looked(still_ns: int, after_ns: int, *, cpu_share: float = 0.0) -> tuple[int, int]:
    """Late beats, and their delays, of an engine that stands still once, so long after the beat at 0.

    Else it works for such a share of the time.
    """
    beats = Beats()
    beats.begin(0, 0)
    now_ns, worked_ns = 0, 0.0
    for _ in range(9):
        next_ns = beats.next_ns + TIMER_NS
        stopped = now_ns <= after_ns < next_ns
        worked_ns += cpu_share * ((after_ns if stopped else next_ns) - now_ns)
        now_ns = max(next_ns, after_ns + still_ns) if stopped else next_ns
        beats.look(now_ns, round(worked_ns))
    return beats.take()


@given(st.integers(0, BEAT_NS - 1), st.floats(0.0, 1.0))
def test_who_runs_has_no_late_beats(after_ns: int, cpu_share: float) -> None:
    """Timers are late by their nature, and other turns on its core are as short as a millisecond."""
    assert looked(0, after_ns, cpu_share=cpu_share) == (0, 0)
    assert looked(ON_TIME_NS - TIMER_NS, after_ns) == (0, 0)


@given(st.integers(2 * MS, 400 * MS), st.integers(0, BEAT_NS - 1))
def test_each_beat_of_a_standstill_is_late_until_its_end(still_ns: int, after_ns: int) -> None:
    """Those were due in it at regular times, and none is missing."""
    end_ns = after_ns + still_ns
    delays = [end_ns - due_ns for due_ns in range(BEAT_NS, end_ns, BEAT_NS) if end_ns - due_ns > ON_TIME_NS]
    assert looked(still_ns, after_ns) == (len(delays), sum(delays))


@given(st.integers(BEAT_NS, 400 * MS))
def test_who_works_for_long_is_busy_and_not_held_up(work_ns: int) -> None:
    """A crowd of answers may take longer than a beat; what of that time it did not run counts all the same."""
    beats = Beats()
    beats.begin(0, 0)
    beats.look(BEAT_NS + work_ns, work_ns)
    assert beats.take() == (0, 0)
    beats.look(2 * BEAT_NS + 2 * work_ns + 3 * MS, 2 * work_ns)
    assert beats.take() == (1, 3 * MS)


def test_waiting_for_a_core_is_no_standstill() -> None:
    """With more busy processes than cores, the busy clock of a process runs like time, its CPU time does not."""
    cores = len(os.sched_getaffinity(0))
    clock = BusyClock()
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * cores)]
    try:
        began, cpu, busy = time.perf_counter_ns(), time.process_time_ns(), clock.read_ns(time.process_time_ns())
        while time.perf_counter_ns() < began + 500_000_000:
            pass
        length = time.perf_counter_ns() - began
        worked = time.process_time_ns() - cpu
        known = clock.read_ns(time.process_time_ns()) - busy
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
        clock.close()
    assert worked < 0.8 * length
    assert known > 0.9 * length


def test_without_the_kernels_word_only_work_is_known() -> None:
    """As where ``/proc`` has no such file, and after the clock was closed."""
    clock = BusyClock()
    clock.close()
    clock.close()
    assert clock.read_ns(123) == 123
