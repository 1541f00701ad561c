"""What the engine counts within a tick."""

from __future__ import annotations

from pytest_gpuserve.load.wire import Answers, Tick
from pytest_gpuserve.measure.histogram import bucket_of

DISTINCT_ANSWERS = 512
DISTINCT_ANSWER_BYTES = 1 << 16
"""Bodies beyond these bounds in one tick are counted, not kept: a report must not disturb the load. The first body of a
tick is kept whatever its size, so that large answers are checked ten times a second."""

LARGEST_ANSWER_BYTES = 1 << 23
"""Half of what a report may hold."""

SAMPLE_CHARACTERS = 300


class Tally:
    """Counts of one tick; ``close`` hands them out and begins the next."""

    def __init__(self, now_ns: int, cpu_ns: int) -> None:
        self._reset(now_ns, cpu_ns)

    def _reset(self, now_ns: int, cpu_ns: int) -> None:
        self._begin_ns = now_ns
        self._begin_cpu_ns = cpu_ns
        self._requests = 0
        self._buckets: dict[int, int] = {}
        self._sum_ns = 0
        self._max_ns = 0
        self._errors: dict[str, int] = {}
        self._samples: dict[str, str] = {}
        self._answers: dict[bytes, int] = {}
        self._answer_bytes = 0
        self._unchecked = 0

    def answered(self, latency_ns: int, body: bytes) -> None:
        """Count a good answer."""
        self._requests += 1
        self._sum_ns += latency_ns
        if latency_ns > self._max_ns:  # noqa: PLR1730 -- a third of the time of calling max(), once a request
            self._max_ns = latency_ns
        bucket = bucket_of(latency_ns)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        seen = self._answers.get(body)
        if seen is not None:
            self._answers[body] = seen + 1
        elif self._has_room(len(body)):
            self._answers[body] = 1
            self._answer_bytes += len(body)
        else:
            self._unchecked += 1

    def _has_room(self, size: int) -> bool:
        if not self._answers:
            return size <= LARGEST_ANSWER_BYTES
        return len(self._answers) < DISTINCT_ANSWERS and self._answer_bytes + size <= DISTINCT_ANSWER_BYTES

    def failed(self, kind: str, sample: str) -> None:
        """Count a failed request by kind, with a sight of the first of its kind."""
        self._errors[kind] = self._errors.get(kind, 0) + 1
        self._samples.setdefault(kind, sample[:SAMPLE_CHARACTERS])

    def close(self, now_ns: int, cpu_ns: int, in_flight: int, oldest_ns: int = 0) -> Tick:
        """Return what was counted since the last call."""
        tick = Tick(
            begin_ns=self._begin_ns,
            end_ns=now_ns,
            requests=self._requests,
            buckets=self._buckets,
            latency_sum_ns=self._sum_ns,
            latency_max_ns=self._max_ns,
            errors=self._errors,
            error_samples=self._samples,
            answers=[Answers(body, count) for body, count in self._answers.items()],
            unchecked=self._unchecked,
            in_flight=in_flight,
            cpu_ns=cpu_ns - self._begin_cpu_ns,
            oldest_ns=oldest_ns,
        )
        self._reset(now_ns, cpu_ns)
        return tick
