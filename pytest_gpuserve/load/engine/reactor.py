"""Waits for sockets and times, and calls their handlers: epoll and one timerfd.

The event loops of libraries wake up on whole milliseconds (epoll's time-outs). They also pass every event through
layers that cost more than the kernel's part of a request.
"""

from __future__ import annotations

import ctypes
import heapq
import os
import select
import time
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

EVENTS_AT_ONCE: Final = 256
NEVER: Final = 1 << 62
SOON_NS: Final = 1_000_000
"""Timers that become due later than this after the begin of a batch of events wait for its end, because reading the
clock after each event costs too much."""
FEW_TIMERS: Final = 64
"""Number of cancelled timers from which the heap is cleaned."""

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT
PEER_CLOSED: Final = select.EPOLLRDHUP
"""The peer sends no more; with ``READABLE``, earlier bytes are still to be read."""

_libc = ctypes.CDLL(None, use_errno=True)
_CLOCK_MONOTONIC: Final = 1
_TFD_TIMER_ABSTIME: Final = 1
_TFD_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class Closable(Protocol):
    """A socket, or a wrapper of one."""

    def fileno(self) -> int:
        """Its file descriptor."""

    def close(self) -> None:
        """Close it."""


class Reactor:
    """Calls handlers until it is stopped. Times are ``time.perf_counter_ns``, Linux's monotonic clock."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[int, int]] = []
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._count = 0
        self._next_ns = NEVER
        self._armed_ns = NEVER
        self._closing: list[Closable] = []
        self._running = False
        # Python has os.timerfd_create only from 3.13 on.
        self._timer_fd = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
        if self._timer_fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = _TimerSpec()
        self._spec_reference = ctypes.byref(self._spec)
        # Edge-triggered: it wakes us without being read.
        self._epoll.register(self._timer_fd, select.EPOLLIN | select.EPOLLET)
        self._handlers[self._timer_fd] = _nothing

    def watch(self, fd: int, handler: Callable[[int], None], events: int) -> None:
        """Call the handler with epoll's event mask when one of the events happens."""
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def change(self, fd: int, handler: Callable[[int], None], events: int) -> None:
        """Watch for other events, or by another handler."""
        self._handlers[fd] = handler
        self._epoll.modify(fd, events)

    def forget(self, fd: int) -> None:
        """Stop watching."""
        # Marked instead of removed, because the current batch of events may contain one of it.
        if self._handlers.get(fd, _nothing) is not _nothing:
            self._handlers[fd] = _nothing
            self._epoll.unregister(fd)

    def close_later(self, sock: Closable) -> None:
        """Stop watching a socket and close it.

        It is closed after the current batch of events, because a new socket of the same number would get its events.
        """
        self.forget(sock.fileno())
        self._closing.append(sock)

    def at(self, when_ns: int, callback: Callable[[], None]) -> int:
        """Call once, not before this time; return the timer's number."""
        self._count = number = self._count + 1
        self._callbacks[number] = callback
        heapq.heappush(self._timers, (when_ns, number))
        self._next_ns = min(self._next_ns, when_ns)
        return number

    def cancel(self, number: int) -> None:
        """Cancel a call, and drop its references; does nothing if it was called already."""
        if self._callbacks.pop(number, None) is None:
            return
        # A place in the heap costs little, but unused time-outs are cancelled by the thousand.
        if len(self._timers) > 2 * len(self._callbacks) + FEW_TIMERS:
            self._timers[:] = [timer for timer in self._timers if timer[1] in self._callbacks]
            heapq.heapify(self._timers)

    def run(self) -> None:
        """Call handlers until ``stop``."""
        self._running = True
        poll, handlers, now = self._epoll.poll, self._handlers, time.perf_counter_ns
        while self._running:
            # A time in the past wakes it at once.
            if self._next_ns != self._armed_ns:
                self._arm()
            events = poll(-1, EVENTS_AT_ONCE)
            soon_ns = now() + SOON_NS
            for fd, mask in events:
                handlers[fd](mask)
                # Due timers do not wait for the rest of a large batch of answers.
                if self._next_ns < soon_ns and now() >= self._next_ns:
                    self._call_due()
            if self._closing:
                for sock in self._closing:
                    sock.close()
                self._closing.clear()

    def stop(self) -> None:
        """Let ``run`` return after the current batch of events; for handlers and timers."""
        self._running = False

    def close(self) -> None:
        """Release the file descriptors."""
        for sock in self._closing:
            sock.close()
        self._epoll.close()
        os.close(self._timer_fd)

    def _call_due(self) -> None:
        timers, callbacks = self._timers, self._callbacks
        # One reading of the clock, so that newly due timers do not keep the sockets waiting.
        now_ns = time.perf_counter_ns()
        while timers and timers[0][0] <= now_ns:
            callback = callbacks.pop(heapq.heappop(timers)[1], None)
            if callback is not None:
                callback()
        self._next_ns = timers[0][0] if timers else NEVER

    def _arm(self) -> None:
        self._armed_ns = self._next_ns
        # A time of zero would disarm it; one in the past fires at once.
        when_ns = 0 if self._next_ns == NEVER else max(1, self._next_ns)
        self._spec.value.seconds, self._spec.value.nanoseconds = divmod(when_ns, 1_000_000_000)
        if _libc.timerfd_settime(self._timer_fd, _TFD_TIMER_ABSTIME, self._spec_reference, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")


def _nothing(mask: int) -> None:
    """Handler of forgotten sockets, and of the timer: due timers are called after every event anyway."""
