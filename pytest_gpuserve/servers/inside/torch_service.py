"""The running worker: one thread reads requests, one or more execute the model, and one answers."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
import traceback
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from pytest_gpuserve.servers.inside.torch_model import Execution, chosen
from pytest_gpuserve.servers.inside.torch_queue import RequestQueue, Waiting
from pytest_gpuserve.servers.inside.torch_wire import BadRequest, Tensor, read_request, write_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.servers.inside.http_socket import ClientConnection, HttpSocket
    from pytest_gpuserve.servers.inside.torch_tally import WorkerCounters

END_SECONDS: Final = 2.0
"""How long an execution under way may take when the worker is told to end."""

MOST_TRACEBACKS: Final = 10
"""A model that fails for every request must not fill the disk with its log."""


class _Executed(NamedTuple):
    """A request with the outputs that the model gave for it."""

    waiting: Waiting
    outputs: Sequence[Tensor]


class Service:
    """Executes a model for the requests that come to a socket until it is closed.

    Args:
        executions: One for each thread that executes; the first one is the thread that calls `run`.
        max_batch_size: Rows of a batch.
        max_wait_seconds: How long the oldest request of a batch waits for others.
        on_first: Called with the seconds of the first request, before its answer goes out.
    """

    def __init__(
        self,
        listener: HttpSocket,
        tally: WorkerCounters,
        name: str,
        executions: Sequence[Execution],
        *,
        max_batch_size: int,
        max_wait_seconds: float,
        on_first: Callable[[float], None],
    ) -> None:
        self._listener = listener
        self._tally = tally
        self._name = name
        self._executions = executions
        self._queue = RequestQueue(max_batch_size, round(max_wait_seconds * 1e9), tally.taken)
        self._done: queue.SimpleQueue[list[_Executed] | None] = queue.SimpleQueue()
        self._on_first: Callable[[float], None] | None = on_first
        self._lock = threading.Lock()
        self._tracebacks = 0

    def run(self) -> None:
        """Serve until `close`; what was asked and not executed by then is not answered."""
        responder = _vital(self._respond_all)
        others = [_vital(self._execute_all, execution) for execution in self._executions[1:]]
        _vital(self._listener.serve, self._take)
        self._execute_all(self._executions[0])
        for thread in others:
            thread.join()
        self._done.put(None)
        responder.join()

    def close(self) -> None:
        """End `run` as soon as what is being executed is answered."""
        self._queue.close()

    def _take(self, client: ClientConnection, body: bytes | bytearray) -> None:
        arrived_ns = time.perf_counter_ns()
        try:
            asked = read_request(body)
        except BadRequest as problem:
            self._refuse(client, problem)
            return
        self._tally.arrived()
        self._queue.put(Waiting(client, asked, arrived_ns))

    def _refuse(self, client: ClientConnection, problem: BadRequest) -> None:
        self._tally.failed(1)
        client.answer(HTTPStatus.BAD_REQUEST, str(problem).encode(errors="replace"))

    def _execute_all(self, execution: Execution) -> None:
        # Not inference_mode: tensors made in it are refused by parts of compiled models, and both should run alike.
        with torch.no_grad():
            while batch := self._queue.take():
                self._execute(execution, batch)

    def _execute(self, execution: Execution, batch: list[Waiting]) -> None:
        begin_ns = time.perf_counter_ns()
        try:
            outputs = execution([waiting.asked for waiting in batch])
        except Exception as problem:  # noqa: BLE001 -- whatever the model raises is an answer
            self._fail(batch, problem)
            execution.check_device()
            return
        end_ns = time.perf_counter_ns()
        rows = sum(waiting.asked.rows for waiting in batch)
        waits_ns = [begin_ns - waiting.arrived_ns for waiting in batch]
        self._tally.executed(rows, waits_ns, end_ns - begin_ns, compiled())
        # Another thread answers, so that the model goes on: with 8 to 32 clients that is a fifth to a half more answers
        # a second, with a single one a tenth fewer.
        self._done.put([_Executed(waiting, each) for waiting, each in zip(batch, outputs, strict=True)])

    def _respond_all(self) -> None:
        while (batch := self._done.get()) is not None:
            for done in batch:
                self._respond(done)

    def _respond(self, done: _Executed) -> None:
        waiting = done.waiting
        try:
            body = write_answer(self._name, chosen(done.outputs, waiting.asked.outputs), waiting.asked.request_id)
        except BadRequest as problem:
            self._refuse(waiting.client, problem)
            return
        latency_ns = time.perf_counter_ns() - waiting.arrived_ns
        if self._on_first is not None:
            self._tell_first(latency_ns)
        # Counted before it goes out: whoever has the answer finds it counted.
        self._tally.answered(latency_ns)
        waiting.client.answer(HTTPStatus.OK, body)

    def _tell_first(self, latency_ns: int) -> None:
        with self._lock:
            tell, self._on_first = self._on_first, None
        if tell is not None:
            tell(latency_ns / 1e9)

    def _fail(self, batch: list[Waiting], problem: Exception) -> None:
        with self._lock:
            self._tracebacks += 1
            shown = self._tracebacks <= MOST_TRACEBACKS
        if shown:
            traceback.print_exception(problem)
        first_line = next(iter(str(problem).splitlines()), "")
        self._tally.failed(len(batch))
        # A request that does not fit the model has not made it raise anything.
        fits = not isinstance(problem, BadRequest)
        said = f"the model raised {type(problem).__name__}: {first_line}" if fits else str(problem)
        status = HTTPStatus.INTERNAL_SERVER_ERROR if fits else HTTPStatus.BAD_REQUEST
        for waiting in batch:
            waiting.client.answer(status, said.encode(errors="replace"))


def compiled() -> tuple[int, int, int]:
    """Frames and graphs that dynamo has compiled in this process, and breaks between graphs; zeros if it is not there.

    To import it takes seconds, which a model that is not compiled does not need.
    """
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0, 0, 0
    counters = dynamo.counters
    breaks = counters.get("graph_break", {})
    return (
        counters.get("frames", {}).get("ok", 0),
        counters.get("stats", {}).get("unique_graphs", 0),
        sum(breaks.values()) if breaks else 0,
    )


def on_termination(close: Callable[[], None]) -> None:
    """Call this when SIGTERM comes, even while the main thread is in a compiler, and exit with 0 soon in any case."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    # Without a handler of Python's own the wake-up descriptor is not written to. Children get the default back.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def watch() -> None:
        while signal.SIGTERM not in os.read(reading, 64):
            pass
        close()
        time.sleep(END_SECONDS)
        os._exit(0)

    _vital(watch)


def _vital(work: Callable[..., None], *arguments: object) -> threading.Thread:
    """Start a thread without which there is no worker: what it raises ends the process."""

    def run() -> None:
        try:
            work(*arguments)
        except BaseException:  # noqa: BLE001 -- shown, and then the end
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    thread = threading.Thread(target=run, name=work.__name__, daemon=True)
    thread.start()
    return thread
