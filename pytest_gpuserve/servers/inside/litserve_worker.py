"""Counts what a worker of LitServe executes.

LitServe tells nothing of its batches. Each of its workers is a new process, which gets callbacks by pickle; ours puts a
counter before the worker's ``predict``.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.servers.inside.facts import write_facts
from pytest_gpuserve.servers.inside.tally import SUFFIX, Tally

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
    from pathlib import Path
    from typing import TypeAlias

    Message: TypeAlias = MutableMapping[str, Any]
    Receive: TypeAlias = Callable[[], Awaitable[Message]]
    Send: TypeAlias = Callable[[Message], Awaitable[None]]

READY_PATH: Final = "/.gpuserve/ready"
"""Answered with 200 when all workers are set up; LitServe itself serves as soon as the first one is."""


class AnswerCounter:
    """ASGI middleware: counts the requests that are answered well, and the time from their arrival to their answer.

    Made anew in each HTTP process, after its fork, so that each has tallies of its own.

    Args:
        app: What answers.
        folder: Where tallies go.
        paths: API paths by the HTTP paths at which they are asked.
        states: What LitServe knows of its workers, by worker.
    """

    def __init__(
        self,
        app: Callable[[Message, Receive, Send], Awaitable[None]],
        *,
        folder: Path,
        paths: dict[str, str],
        states: Callable[[], dict[str, str]],
    ) -> None:
        self._app = app
        self._states = states
        tallies = {path: open_tally(folder, ANSWERS, path, 1) for path in sorted(set(paths.values()))}
        self._tallies = {asked: tallies[path] for asked, path in paths.items()}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or pass on what is none."""
        path = scope.get("path", "")
        if path == READY_PATH:
            await self._say_ready(send)
            return
        tally = self._tallies.get(path)
        if tally is None or scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter_ns()
        good = False

        async def watched(message: Message) -> None:
            nonlocal good
            if message["type"] == "http.response.start":
                good = 200 <= message["status"] < 300
            await send(message)

        await self._app(scope, receive, watched)
        if good:
            tally.executed(1, time.perf_counter_ns() - began)

    async def _say_ready(self, send: Send) -> None:
        states = self._states()
        waiting = sorted(f"{worker}: {state}" for worker, state in states.items() if state != "ready")
        status = 503 if waiting or not states else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": ", ".join(waiting).encode()})


FACTS: Final = "server.json"
"""File in which the server says how it was set up."""

EXECUTIONS: Final = "executions"
"""Writers that count what a worker executes."""

ANSWERS: Final = "answers"
"""Writers that count what an HTTP process answers."""


def open_tally(folder: Path, counts: str, path: str, largest: int, **more: object) -> Tally:
    """Begin a tally of this process; what it counts, and of which API path, is said in a file beside it."""
    stem = f"{counts}-{os.getpid()}-{uuid.uuid4().hex}"
    write_facts(folder / f"{stem}.json", {"counts": counts, "path": path, **more})
    return Tally(folder / f"{stem}{SUFFIX}", largest)


LOOPS: Final = frozenset({"SingleLoop", "BatchedLoop", "StreamingLoop", "BatchedStreamingLoop"})
"""LitServe's loops that call ``predict`` once for each batch."""

CONTINUOUS: Final = "ContinuousBatchingLoop"
"""The one that calls ``step`` for all sequences that are active."""


class WorkerCallback:
    """The callback of a worker: says how it was set up, and counts what it executes.

    Pickled into each worker, so it is small; LitServe swallows what a callback raises, so what goes wrong ends the
    worker.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.began = 0.0

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(name)

    def on_before_setup(self, **_: object) -> None:
        """Time the model's setup."""
        self.began = time.perf_counter()

    def on_after_setup(self, lit_api: Any, **_: object) -> None:  # noqa: ANN401 - LitServe is not imported here
        """Count from now on: what ``setup`` itself ran, such as a warm-up, is no request."""
        try:
            seconds = time.perf_counter() - self.began
            if not is_counted(lit_api):
                return
            tally = open_tally(
                self.folder,
                EXECUTIONS,
                lit_api.api_path,
                lit_api.max_batch_size,
                setup_seconds=seconds,
                max_batch_size=lit_api.max_batch_size,
                batch_timeout=lit_api.batch_timeout,
                device=str(lit_api.device),
            )
            if is_continuous(lit_api):
                count_steps(lit_api, tally)
            else:
                count_predictions(lit_api, tally)
        except BaseException as problem:  # noqa: BLE001 - a server that is not counted must not serve
            sys.stderr.write(f"pytest-gpuserve cannot count the batches of {lit_api.api_path}: {problem!r}\n")
            sys.stderr.flush()
            os._exit(1)


def _nothing(*_: object, **__: object) -> None:
    """What a callback does at all other events."""


def is_continuous(lit_api: Any) -> bool:  # noqa: ANN401 - LitServe is not imported here
    """Whether an API's loop batches continuously."""
    return CONTINUOUS in _loop_names(lit_api) and hasattr(lit_api, "step")


def is_counted(lit_api: Any) -> bool:  # noqa: ANN401 - LitServe is not imported here
    """Whether it is known what an API's loop calls for each batch."""
    return is_continuous(lit_api) or not LOOPS.isdisjoint(_loop_names(lit_api))


def _loop_names(lit_api: Any) -> list[str]:  # noqa: ANN401 - LitServe is not imported here
    """The names of the LitServe classes that an API's loop is made of."""
    return [base.__name__ for base in type(lit_api.loop).__mro__ if base.__module__.startswith("litserve.")]


class FormedBatch:
    """The batch that a worker is about to execute: its size, 1 where it was not batched."""

    size = 1


def count_predictions(lit_api: Any, tally: Tally) -> None:  # noqa: ANN401 - LitServe is not imported here
    """Count each ``predict`` that succeeds, with as many items as were batched for it.

    A stream is one execution, from its beginning to its end. At each call LitServe asks a function for its signature,
    which takes longer than all that is done here, and longer still for a wrapper that points to what it wraps: so ours
    point to nothing, and take the argument that LitServe looks for.
    """
    form, predict = _with_context(lit_api.batch), _with_context(lit_api.predict)
    batch = FormedBatch()

    def sized_batch(inputs: Any, context: object = None) -> object:  # noqa: ANN401
        batch.size = len(inputs)
        return form(inputs, context)

    lit_api.batch = sized_batch
    lit_api.predict = _counted_predict(predict, lit_api.predict, batch, tally)


def _with_context(function: Callable[..., Any]) -> Callable[[Any, object], Any]:
    """A method as one that also takes the requests' context, though it may not want it."""
    if "context" in inspect.signature(function).parameters:
        return lambda x, context: function(x, context=context)
    return lambda x, _: function(x)


def _counted_predict(
    predict: Callable[[Any, object], Any], original: Callable[..., Any], batch: FormedBatch, tally: Tally
) -> Callable[..., Any]:
    """A function of the same kind as the original, for LitServe looks at that; an exception is not counted."""
    clock = time.perf_counter_ns
    if inspect.isasyncgenfunction(original):

        async def counted_async_stream(x: object, context: object = None) -> AsyncIterator[object]:
            size, began = batch.size, clock()
            async with contextlib.aclosing(predict(x, context)) as stream:
                async for part in stream:
                    yield part
            tally.executed(size, clock() - began)

        return counted_async_stream
    if inspect.iscoroutinefunction(original):

        async def counted_coroutine(x: object, context: object = None) -> object:
            size, began = batch.size, clock()
            answer = await predict(x, context)
            tally.executed(size, clock() - began)
            return answer

        return counted_coroutine
    if inspect.isgeneratorfunction(original):

        def counted_stream(x: object, context: object = None) -> Iterator[object]:
            size, began = batch.size, clock()
            yield from predict(x, context)
            tally.executed(size, clock() - began)

        return counted_stream

    def counted_call(x: object, context: object = None) -> object:
        size, began = batch.size, clock()
        answer = predict(x, context)
        tally.executed(size, clock() - began)
        return answer

    return counted_call


def count_steps(lit_api: Any, tally: Tally) -> None:  # noqa: ANN401 - LitServe is not imported here
    """Count each ``step`` of continuous batching, with as many items as sequences moved on."""
    step = lit_api.step

    def counted_step(*args: object, **more: object) -> Any:  # noqa: ANN401
        began = time.perf_counter_ns()
        outputs = step(*args, **more)
        if outputs:
            tally.executed(len({output.uid for output in outputs}), time.perf_counter_ns() - began)
        return outputs

    lit_api.step = counted_step
