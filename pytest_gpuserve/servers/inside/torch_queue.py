"""Requests that wait for the model, and how they are put together: those that fit into one batch, oldest first."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.servers.inside.http_socket import ClientConnection
    from pytest_gpuserve.servers.inside.torch_wire import InferenceRequest

MOST_WAITING: Final = 4096
"""Requests that wait here; beyond them the clients' sockets fill."""

Fit: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]
"""What requests of one batch have in common: names, datatypes and all but the first dimension of their inputs."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request in the queue.

    Args:
        arrived_ns: When it was read, by `time.perf_counter_ns`.
    """

    client: ClientConnection
    asked: InferenceRequest
    arrived_ns: int


def fit_of(asked: InferenceRequest) -> Fit:
    """Say which requests a request can be put together with."""
    return tuple((tensor.name, tensor.datatype, tensor.shape[1:]) for tensor in asked.inputs)


class RequestQueue:
    """A queue between the thread that reads requests and those that execute them.

    Args:
        max_rows: How many rows a batch has at most. A request that alone has more is a batch of its own: none is cut.
        max_wait_ns: How long after its arrival the oldest request of a batch may be kept waiting for others.
        on_taken: Told how many requests were taken, while the queue is locked.
    """

    def __init__(self, max_rows: int, max_wait_ns: int, on_taken: Callable[[int], object]) -> None:
        self._max_rows = max_rows
        self._max_wait_ns = max_wait_ns
        self._on_taken = on_taken
        self._changed = threading.Condition()
        self._groups: dict[Fit, deque[Waiting]] = {}
        self._rows: dict[Fit, int] = {}
        self._count = 0
        self._closed = False

    def put(self, waiting: Waiting) -> None:
        """Append a request; waits while the queue is full, and drops it when that is closed."""
        fit = fit_of(waiting.asked)
        with self._changed:
            while self._count >= MOST_WAITING and not self._closed:
                self._changed.wait()
            self._groups.setdefault(fit, deque()).append(waiting)
            self._rows[fit] = rows = self._rows.get(fit, 0) + waiting.asked.rows
            self._count += 1
            # Nobody is woken for a request that only makes a waiting batch larger.
            if self._count == 1 or rows >= self._max_rows:
                self._changed.notify_all()

    def take(self) -> list[Waiting]:
        """Return the next batch, waiting for it: requests in the order of their arrival; none when closed."""
        with self._changed:
            while True:
                while not self._groups and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return []
                fit, due_ns = min(((fit, self._due_ns(fit)) for fit in self._groups), key=itemgetter(1))
                left_ns = due_ns - time.perf_counter_ns()
                if left_ns <= 0:
                    return self._cut(fit)
                self._changed.wait(left_ns / 1e9)

    def close(self) -> None:
        """Give nothing out any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _due_ns(self, fit: Fit) -> int:
        """When a group's next batch is due: when its oldest arrived if it is full, else when that has waited enough."""
        arrived_ns = self._groups[fit][0].arrived_ns
        # A full one that arrived long ago comes before one that has just become full.
        return arrived_ns if self._rows[fit] >= self._max_rows else arrived_ns + self._max_wait_ns

    def _cut(self, fit: Fit) -> list[Waiting]:
        """Take a batch from the front of a group."""
        group = self._groups[fit]
        batch = [group.popleft()]
        rows = batch[0].asked.rows
        while group and rows + group[0].asked.rows <= self._max_rows:
            batch.append(group.popleft())
            rows += batch[-1].asked.rows
        self._rows[fit] -= rows
        if not group:
            del self._groups[fit], self._rows[fit]
        if self._count >= MOST_WAITING:
            self._changed.notify_all()
        self._count -= len(batch)
        self._on_taken(len(batch))
        return batch
