"""The running worker: each connection's thread queues its request and answers it, one or more execute the model."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections import Counter, deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.servers.inside.torch_http import (
    BadRequest,
    Bytes,
    InferenceRequest,
    ModelFailed,
    Tensor,
    read_request,
    write_answer,
)
from pytest_gpuserve.servers.inside.torch_model import Execution, chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.servers.inside.tally import Tally

Fit: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Properties that requests of one batch share: names, datatypes and all but the first dimension of their inputs."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request in the queue.

    Args:
        arrived_ns: Time of reading it, by `time.perf_counter_ns`.
        outputs: The model's outputs once it is executed, or BadRequest, or ModelFailed.
    """

    asked: InferenceRequest
    arrived_ns: int
    outputs: Future[Sequence[Tensor]] = field(default_factory=Future)


def fit_of(asked: InferenceRequest) -> Fit:
    """Key of requests that can share a batch."""
    return tuple((tensor.name, tensor.datatype, tensor.shape[1:]) for tensor in asked.inputs)


class RequestQueue:
    """Queue between the threads that read requests and those that execute them.

    Args:
        max_rows: Most rows of a batch. A single request with more rows is a batch of its own, and is not split.
        max_wait_ns: Longest wait of a batch's oldest request for others, from its arrival.
    """

    def __init__(self, max_rows: int, max_wait_ns: int) -> None:
        self._max_rows = max_rows
        self._max_wait_ns = max_wait_ns
        self._changed = threading.Condition()
        self._groups: dict[Fit, deque[Waiting]] = {}
        self._rows: dict[Fit, int] = {}
        self._count = 0

    def put(self, waiting: Waiting) -> None:
        """Append a request."""
        fit = fit_of(waiting.asked)
        with self._changed:
            self._groups.setdefault(fit, deque()).append(waiting)
            self._rows[fit] = rows = self._rows.get(fit, 0) + waiting.asked.rows
            self._count += 1
            # A request that only makes a waiting batch larger does not wake a thread.
            if self._count == 1 or rows >= self._max_rows:
                self._changed.notify_all()

    def take(self) -> list[Waiting]:
        """Wait for the next batch and return it: requests in the order of their arrival."""
        with self._changed:
            while True:
                while not self._groups:
                    self._changed.wait()
                fit, due_ns = min(((fit, self._due_ns(fit)) for fit in self._groups), key=itemgetter(1))
                left_ns = due_ns - time.perf_counter_ns()
                if left_ns <= 0:
                    return self._cut(fit)
                self._changed.wait(left_ns / 1e9)

    def _due_ns(self, fit: Fit) -> int:
        """Time when a group's next batch is due: the oldest arrival if it is full, else after the longest wait."""
        arrived_ns = self._groups[fit][0].arrived_ns
        # A full group that arrived long ago comes before one that has just become full.
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
        self._count -= len(batch)
        return batch


GRAPH_EXECUTIONS: Final = 3
"""Executions of a shape with CUDA graphs: a warm-up of the memory, the recording of the graph, and its replay."""

GRAPH_MODES: Final = frozenset({"reduce-overhead", "max-autotune"})


def uses_cuda_graphs(device: str, backend: str, mode: str) -> bool:
    """Whether ``torch.compile`` records CUDA graphs, one a shape, which it does without compiling a frame."""
    return device == "cuda" and (backend == "cudagraphs" or mode in GRAPH_MODES)


class GraphShapes:
    """Shapes whose CUDA graphs a compiled model has recorded.

    Args:
        max_batch_size: Rows of the largest batch.
    """

    def __init__(self, max_batch_size: int) -> None:
        self._max_batch_size = max_batch_size
        self._executions: Counter[tuple[Fit, int]] = Counter()

    def record(self, execute: Callable[[list[InferenceRequest]], object], asked: InferenceRequest) -> None:
        """Before a worker's first answer, execute batches of each size until all have their graphs.

        Raises:
            Exception: The model raised it; the next call begins anew.
        """
        if self._executions:
            return
        one = asked if self._max_batch_size == 1 else first_row(asked)
        batches = [[one] * size for size in range(1, self._max_batch_size + 1)]
        for batch in batches:
            for _ in range(GRAPH_EXECUTIONS):
                execute(batch)
        self._executions.update({shape_of(batch): GRAPH_EXECUTIONS for batch in batches})

    def is_new(self, batch: Sequence[InferenceRequest]) -> bool:
        """Whether this batch's execution comes before the first replay of a graph; counts it."""
        shape = shape_of(batch)
        self._executions[shape] += 1
        return self._executions[shape] < GRAPH_EXECUTIONS


def shape_of(batch: Sequence[InferenceRequest]) -> tuple[Fit, int]:
    """Group of a batch, and its rows: the whole shape that a model sees."""
    return fit_of(batch[0]), sum(asked.rows for asked in batch)


def first_row(asked: InferenceRequest) -> InferenceRequest:
    """The first row of a request, as a request."""
    return InferenceRequest(
        tuple(
            tensor._replace(shape=(1, *tensor.shape[1:]), data=tensor.data[: len(tensor.data) // tensor.shape[0]])
            for tensor in asked.inputs
        )
    )


MOST_TRACEBACKS: Final = 10
"""Bound on logged errors, because a model that fails for every request must not fill the disk."""


class Service:
    """Executes a model for the requests of all connections.

    Args:
        executions: One for each executing thread; the first one belongs to the thread that calls `run`.
        max_batch_size: Rows of a batch.
        max_wait_seconds: Longest wait of a batch's oldest request for others.
        on_first: Called with the seconds of the first request, before it is answered.
        graphs: Shapes of a model that records CUDA graphs; None for others.
    """

    def __init__(
        self,
        tally: Tally,
        name: str,
        executions: Sequence[Execution],
        *,
        max_batch_size: int,
        max_wait_seconds: float,
        on_first: Callable[[float], None],
        graphs: GraphShapes | None = None,
    ) -> None:
        self._tally = tally
        self._name = name
        self._executions = executions
        self._queue = RequestQueue(max_batch_size, round(max_wait_seconds * 1e9))
        self._on_first: Callable[[float], None] | None = on_first
        self._graphs = graphs
        self._lock = threading.Lock()
        self._failures = 0
        self._compiled = (0, 0, 0)

    def run(self) -> None:
        """Execute requests until the process ends."""
        for execution in self._executions[1:]:
            vital(self._execute_all, execution)
        self._execute_all(self._executions[0])

    def infer(self, body: bytes, json_bytes: int) -> list[Bytes]:
        """Answer a request, as `read_request` and `write_answer` describe them; any thread may call.

        Raises:
            BadRequest: The body is not a request, or does not fit the model.
            ModelFailed: The model raised an exception.
        """
        arrived_ns = time.perf_counter_ns()
        asked = read_request(body, json_bytes)
        waiting = Waiting(asked, arrived_ns)
        self._queue.put(waiting)
        answer = write_answer(self._name, chosen(waiting.outputs.result(), asked.outputs), asked.request_id)
        latency_ns = time.perf_counter_ns() - arrived_ns
        if self._on_first is not None:
            self._tell_first(latency_ns)
        # Counted before it is sent, so that a client with the answer finds it counted.
        self._tally.add(answered=1, server_ns=latency_ns)
        return answer

    def _execute_all(self, execution: Execution) -> None:
        # Not inference_mode: parts of compiled models refuse its tensors, and both should run alike.
        with torch.no_grad():
            while True:
                self._execute(execution, self._queue.take())

    def _execute(self, execution: Execution, batch: list[Waiting]) -> None:
        requests = [waiting.asked for waiting in batch]
        try:
            if self._graphs is not None:
                self._graphs.record(execution, requests[0])
            begin_ns = time.perf_counter_ns()
            outputs = execution(requests)
        except Exception as problem:
            # Whatever the model raises is an answer, but before the first one the start has failed.
            if self._on_first is not None and not isinstance(problem, BadRequest):
                traceback.print_exc()
                raise ServerFailed(
                    "torch_worker: the model fails at its first request",
                    found=f"{type(problem).__name__}: {problem}",
                    remedies=["check names, types and shapes of the inputs"],
                ) from problem
            self._fail(batch, problem)
            execution.check_device()
            return
        end_ns = time.perf_counter_ns()
        self._count(batch, begin_ns, end_ns)
        for waiting, each in zip(batch, outputs, strict=True):
            waiting.outputs.set_result(each)

    def _count(self, batch: list[Waiting], begin_ns: int, end_ns: int) -> None:
        """Count an execution; it compiled if it made a frame, or came before the first replay of a CUDA graph."""
        requests = [waiting.asked for waiting in batch]
        rows = sum(asked.rows for asked in requests)
        recording = self._graphs is not None and self._graphs.is_new(requests)
        with self._lock:
            now = compiled()
            frames, graphs, breaks = (after - before for after, before in zip(now, self._compiled, strict=True))
            self._compiled = now
        compiling = frames > 0 or recording
        self._tally.add(
            rows,
            queue_ns=sum(begin_ns - waiting.arrived_ns for waiting in batch),
            executed=len(batch),
            compute_ns=end_ns - begin_ns,
            executions=1,
            items=rows,
            compiling_ns=(end_ns - begin_ns) * compiling,
            compiling=int(compiling),
            frames=frames,
            graphs=graphs,
            breaks=breaks,
        )

    def _tell_first(self, latency_ns: int) -> None:
        with self._lock:
            tell, self._on_first = self._on_first, None
        if tell is not None:
            tell(latency_ns / 1e9)

    def _fail(self, batch: list[Waiting], problem: Exception) -> None:
        self._failures += 1
        if self._failures <= MOST_TRACEBACKS:
            traceback.print_exception(problem)
        first_line = next(iter(str(problem).splitlines()), "")
        # A request that does not fit the model is not an error of the model.
        refused = isinstance(problem, BadRequest)
        said = f"the model raised {type(problem).__name__}: {first_line}"
        for waiting in batch:
            # Each client's thread raises one of its own.
            waiting.outputs.set_exception(BadRequest(str(problem)) if refused else ModelFailed(said))


def compiled() -> tuple[int, int, int]:
    """Frames and graphs that dynamo has compiled in this process, and graph breaks; zeros if it was not imported.

    Its import takes seconds, and a model that is not compiled does not need it.
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


def vital(work: Callable[..., None], *arguments: object) -> threading.Thread:
    """Start an essential thread of the worker: its exceptions end the process."""

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
