"""Counts the events of a tick, and detects pauses of the engine.

Counting is most of the engine's own cost of a request. So durations are only noted between requests, and put into their
histograms a few hundred times a second.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from itertools import repeat
from math import floor, log2
from operator import truediv
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.engine.transport import Repeat, text_of
from pytest_gpuserve.load.wire import BEAT_NS
from pytest_gpuserve.measure.histogram import LOG2_BASE, Histogram
from pytest_gpuserve.measure.window import HISTOGRAMS, AnswerCount, Streams, Window
from pytest_gpuserve.process.logs import excerpt

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from pytest_gpuserve.load.engine.transport import Sample

DISTINCT_ANSWERS: Final = 512
DISTINCT_ANSWER_BYTES: Final = 1 << 16
"""Bounds on the answers that a tick keeps if only some are kept: a report must not disturb the load. Answers beyond
them are only counted. The first body of a tick is kept at any size, so that large answers are checked ten times a
second."""

LARGEST_ANSWER_BYTES: Final = 1 << 23

ALL_ANSWERS: Final = 1 << 18
ALL_ANSWER_BYTES: Final = 1 << 25
"""Bounds if all answers are kept: half of a message's limit, which leaves space for the frame of each."""

SAMPLE_CHARACTERS: Final = 300


class DurationRecorder:
    """A growing histogram: ``note`` a duration in nanoseconds, ``settle`` now and then, ``close``."""

    __slots__ = ("_counts", "_max_ns", "_noted", "_sum_ns", "note")

    def __init__(self) -> None:
        self._noted: list[int] = []
        # The list's own method, because a wrapper would cost several times as much.
        self.note = self._noted.append
        self._counts: Counter[int] = Counter()
        self._sum_ns = 0
        self._max_ns = 0

    def settle(self) -> None:
        """Move the noted durations into the histogram."""
        noted = self._noted
        if not noted:
            return
        self._sum_ns += sum(noted)
        self._max_ns = max(self._max_ns, *noted)
        if min(noted) < 1:
            noted = [max(1, duration_ns) for duration_ns in noted]
        # The same as ``measure.histogram.bucket_of``, without a call for each.
        self._counts.update(map(floor, map(truediv, map(log2, noted), repeat(LOG2_BASE))))
        self._noted.clear()

    def close(self) -> Histogram:
        """Return the histogram, and begin a new one."""
        self.settle()
        durations = Histogram(self._counts, self._sum_ns, self._max_ns)
        self._counts = Counter()
        self._sum_ns = 0
        self._max_ns = 0
        return durations


class TickCounters:
    """Counts the events of a tick; ``close`` returns the tick and begins the next.

    Attributes:
        tick: The current tick. Loops add to its numbers, and note durations here until it ends.
        answers: Distinct answers of each payload: number of occurrences, and the first request of each.
        good: As in the tick, like the two below it.
        sending_ns: See there.
        receiving_ns: See there.
        tokens: As in `Streams`, like the three below it.
        with_usage: See there.
        usage_tokens: See there.
        silent_chunks: See there.
    """

    def __init__(self, payloads: int = 1, keep_answers: Literal["all", "some", "none"] = "some") -> None:
        self._begin_cpu_ns = 0
        # Also if answers are not reported: known answers are counted faster than new ones.
        self._reports_answers = keep_answers != "none"
        self._most_answers = ALL_ANSWERS if keep_answers == "all" else DISTINCT_ANSWERS
        self._most_bytes = ALL_ANSWER_BYTES if keep_answers == "all" else DISTINCT_ANSWER_BYTES
        self._under_way = 0
        self._waited_ns = 0
        self._payloads = payloads
        self.latency = DurationRecorder()
        self.service = DurationRecorder()
        self.lag = DurationRecorder()
        self.ttft = DurationRecorder()
        self.itl = DurationRecorder()
        self.tpot = DurationRecorder()
        self.repeat = Repeat(self.latency.note, self.lag.note)
        self._reset(0)

    def _reset(self, number: int) -> None:
        self.tick = Window(number)
        self.answers: list[dict[bytes, list[int]]] = [{} for _ in range(self._payloads)]
        """Distinct answers of each payload: number of occurrences, and the first request of each."""
        self.repeat.begin_tick(self.answers[0])
        self.good = self.sending_ns = self.receiving_ns = 0
        self.tokens = self.with_usage = self.usage_tokens = self.silent_chunks = 0
        self._failed = 0
        self._kept = 0
        self._kept_bytes = 0
        self._left_bytes = 0

    def begin(self, now_ns: int, cpu_ns: int) -> None:
        """Begin the first tick now."""
        self.tick.begin_ns = now_ns
        self._begin_cpu_ns = cpu_ns

    def settle(self) -> None:
        """Move durations into their histograms; to be called often, so that it never takes long."""
        self.latency.settle()
        self.service.settle()
        self.lag.settle()
        self.itl.settle()

    def new_answer(self, index: int, number: int, body: bytes) -> None:
        """Note a new answer, if it fits into the bounds."""
        if self._has_room(len(body)):
            self.answers[index][body] = [1, number]
            self._kept += 1
            self._kept_bytes += len(body)
        else:
            self.tick.unchecked += 1
            self._left_bytes += len(body)

    def _has_room(self, size: int) -> bool:
        if not self._kept:
            return size <= LARGEST_ANSWER_BYTES
        return self._kept < self._most_answers and self._kept_bytes + size <= self._most_bytes

    def fail(self, kind: str, sample: Sample, *, under_way_ns: int | None = None) -> None:
        """Count a failure by kind, with a sample of the first of its kind.

        Args:
            kind: For example ``status 503``.
            sample: Uncut text of the failure, because secrets are found only in a whole text.
            under_way_ns: Time since the send of the request; None without a request.
        """
        if under_way_ns is not None:
            self._failed += 1
            self.tick.untimed_ns += under_way_ns
        errors, samples = self.tick.errors, self.tick.error_samples
        errors[kind] = errors.get(kind, 0) + 1
        # For the first one only: to make the text and mask secrets takes as long as some requests.
        if kind not in samples:
            samples[kind] = excerpt(text_of(sample), os.environ, most=SAMPLE_CHARACTERS)

    def close(
        self,
        now_ns: int,
        cpu_ns: int,
        sent_ns: Sequence[int] = (),
        *,
        open_loop: bool = False,
        last: bool = False,
    ) -> Window:
        """Return the counts since the last call.

        Args:
            now_ns: The tick's end.
            cpu_ns: CPU time of the process so far.
            sent_ns: Send times of the requests in flight.
            open_loop: Whether ``service`` and ``due`` are counted apart from ``latency`` and the sent requests.
            last: Whether it is the last tick.
        """
        tick = self.tick
        for name in HISTOGRAMS:
            setattr(tick, name, getattr(self, name).close())
        ttft, itl, tpot = self.ttft.close(), self.itl.close(), self.tpot.close()
        if ttft.total or self.tokens:
            tick.streams = Streams(ttft, itl, tpot, self.tokens, self.with_usage, self.usage_tokens, self.silent_chunks)
        tick.good, tick.sending_ns, tick.receiving_ns = self.good, self.sending_ns, self.receiving_ns
        tick.end_ns = now_ns
        tick.requests = tick.latency.total
        tick.sent = tick.requests + self._failed + len(sent_ns) - self._under_way
        if not open_loop:
            tick.due = tick.sent
        tick.under_way = len(sent_ns)
        # For a request that was in flight at the begin only the rest counts: its latency less its earlier wait.
        waited_ns = len(sent_ns) * now_ns - sum(sent_ns)
        served_ns = (tick.service if open_loop else tick.latency).sum_ns + tick.untimed_ns
        tick.in_flight_ns = served_ns + waited_ns - self._waited_ns
        tick.oldest_ns = now_ns - min(sent_ns, default=now_ns)
        if self._reports_answers:
            tick.answers = [
                AnswerCount(index, body, count, number)
                for index, counts in enumerate(self.answers)
                for body, (count, number) in counts.items()
            ]
        else:
            tick.sized = tick.requests
            sizes = (len(body) * count for counts in self.answers for body, (count, _) in counts.items())
            tick.sized_bytes = sum(sizes, start=self._left_bytes)
        tick.cpu_ns = cpu_ns - self._begin_cpu_ns
        tick.last = last
        self._under_way = tick.under_way
        self._waited_ns = waited_ns
        self._reset(tick.number + 1)
        self.begin(now_ns, cpu_ns)
        return tick


ON_TIME_NS: Final = 1_000_000
"""Tolerated delay of a beat: timers are some 0.1 ms late on any host, and another process' time slice may be as
short."""

_NEVER_NS: Final = 2**63 - 1


class Beats:
    """Detects that an engine was paused although a core was free: the engine, or its machine, was stopped.

    Lags do not show that, because an answer that comes during a pause counts as come at its end. So the engine reads
    the clock every ``BEAT_NS``, and late beats tell the length of a pause.

    The wait for a core is left out. If other processes of the host had the core, their CPU share tells (`device.host`).
    If the server had it, as on a host whose cores it all uses, that belongs to this server on this host, in every
    build.

    Attributes:
        next_ns: Time of the next beat.
    """

    def __init__(self) -> None:
        # A load may be halted before it begins.
        self.next_ns = _NEVER_NS
        self._late = (0, 0)
        self._busy_ns = 0

    def begin(self, now_ns: int, busy_ns: int) -> None:
        """Begin now; ``busy_ns`` is the process' time of work and of waits for a core."""
        self.next_ns, self._busy_ns = now_ns + BEAT_NS, busy_ns

    def look(self, now_ns: int, busy_ns: int) -> None:
        """Note the missed beats, and begin anew; does nothing if no beat was due.

        The engine's work and waits for a core since the last beat are subtracted from the delay.
        """
        if now_ns < self.next_ns:
            return
        late_ns = now_ns - self.next_ns - (busy_ns - self._busy_ns)
        delays_ns = range(late_ns, ON_TIME_NS, -BEAT_NS)
        count, sum_ns = self._late
        self._late = count + len(delays_ns), sum_ns + sum(delays_ns)
        self.begin(now_ns, busy_ns)

    def take(self) -> tuple[int, int]:
        """Return the number of late beats and the sum of their delays in ns, and forget them."""
        late, self._late = self._late, (0, 0)
        return late


class BusyClock:
    """Time that this process has worked, or waited for a core that was taken.

    Source: the kernel's Documentation/scheduler/sched-stats.rst, on ``/proc/PID/schedstat``. Without that file, waits
    are unknown.
    """

    def __init__(self) -> None:
        self._descriptor = -1
        with suppress(OSError):
            self._descriptor = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def read_ns(self, cpu_ns: int) -> int:
        """Add waits for a core to its CPU time."""
        if self._descriptor < 0:
            return cpu_ns
        try:
            return cpu_ns + int(os.pread(self._descriptor, 100, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return cpu_ns

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
