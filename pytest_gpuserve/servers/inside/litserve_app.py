"""Runs a LitServe app unchanged: on a given port, with its batches and its answers counted.

``LAUNCH --port=PORT --folder=FOLDER APP [ARGUMENT...]``

LitServe does not report its batches. Each of its workers is a new process, which gets callbacks by pickle. Our callback
wraps the worker's ``predict`` with a counter. Answers are counted by a middleware in each of its HTTP processes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.metadata
import inspect
import os
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.servers.inside.as_main import run_as_main
from pytest_gpuserve.servers.inside.tally import SUFFIX, Tally, write_facts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
    from typing import TypeAlias

    Message: TypeAlias = MutableMapping[str, Any]
    Receive: TypeAlias = Callable[[], Awaitable[Message]]
    Send: TypeAlias = Callable[[Message], Awaitable[None]]

LAUNCH: Final = ("-c", "from pytest_gpuserve.servers.inside.litserve_app import main; main()")
"""Arguments of the interpreter: pickles of the callback need this module by its own name, which ``-m`` would hide."""

READY_PATH: Final = "/.gpuserve/ready"
"""Path that answers 200 when all workers are set up; LitServe itself serves as soon as the first one is."""


class AnswerCounter:
    """ASGI middleware: counts the requests that are answered well, and the time from their arrival to their answer.

    Each HTTP process makes its own after its fork, with tallies of its own.

    Args:
        app: The wrapped app.
        folder: Folder of the tallies.
        paths: API paths by their HTTP paths.
        states: LitServe's state of its workers, by worker.
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
        """Answer a request; pass on other messages."""
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
"""File with the server's setup."""

EXECUTIONS: Final = "executions"
"""Prefix of tallies that count a worker's executions."""

ANSWERS: Final = "answers"
"""Prefix of tallies that count an HTTP process' answers."""


def open_tally(folder: Path, counts: str, path: str, largest: int, **more: object) -> Tally:
    """Begin a tally of this process; a file beside it names its API path and counters."""
    stem = f"{counts}-{os.getpid()}-{uuid.uuid4().hex}"
    write_facts(folder / f"{stem}.json", {"counts": counts, "path": path, **more})
    return Tally(folder / f"{stem}{SUFFIX}", largest)


LOOPS: Final = frozenset({"SingleLoop", "BatchedLoop", "StreamingLoop", "BatchedStreamingLoop"})
"""LitServe's loops that call ``predict`` once a batch."""

CONTINUOUS: Final = "ContinuousBatchingLoop"
"""LitServe's loop that calls ``step`` for all active sequences."""


class WorkerCallback:
    """Callback of a worker: reports its setup, and counts its executions.

    It is pickled into each worker, so it is small. LitServe ignores exceptions of a callback, so an error ends the
    worker.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(name)

    def on_after_setup(self, lit_api: Any, **_: object) -> None:  # noqa: ANN401 - LitServe is not imported here
        """Count from now on: executions within ``setup``, such as a warm-up, are not requests."""
        try:
            if not is_counted(lit_api):
                return
            tally = open_tally(
                self.folder,
                EXECUTIONS,
                lit_api.api_path,
                lit_api.max_batch_size,
                max_batch_size=lit_api.max_batch_size,
                batch_timeout=lit_api.batch_timeout,
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
    """Ignore all other events."""


def is_continuous(lit_api: Any) -> bool:  # noqa: ANN401 - LitServe is not imported here
    """Whether an API's loop batches continuously."""
    return CONTINUOUS in _loop_names(lit_api) and hasattr(lit_api, "step")


def is_counted(lit_api: Any) -> bool:  # noqa: ANN401 - LitServe is not imported here
    """Whether it is known which function an API's loop calls for each batch."""
    return is_continuous(lit_api) or not LOOPS.isdisjoint(_loop_names(lit_api))


def _loop_names(lit_api: Any) -> list[str]:  # noqa: ANN401 - LitServe is not imported here
    """Names of the LitServe classes of an API's loop."""
    return [base.__name__ for base in type(lit_api.loop).__mro__ if base.__module__.startswith("litserve.")]


class FormedBatch:
    """The batch that a worker is about to execute: its size, or 1 without batching."""

    size = 1


def count_predictions(lit_api: Any, tally: Tally) -> None:  # noqa: ANN401 - LitServe is not imported here
    """Count each ``predict`` that succeeds, with the number of items in its batch.

    A stream is one execution, from its begin to its end. LitServe inspects a function's signature at each call. That
    takes longer than the counting, and even longer for a wrapper with ``__wrapped__``. So our wrappers have none, and
    declare the argument that LitServe looks for.
    """
    form, predict = _with_context(lit_api.batch), _with_context(lit_api.predict)
    batch = FormedBatch()

    def sized_batch(inputs: Any, context: object = None) -> object:  # noqa: ANN401
        batch.size = len(inputs)
        return form(inputs, context)

    lit_api.batch = sized_batch
    lit_api.predict = _counted_predict(predict, lit_api.predict, batch, tally)


def _with_context(function: Callable[..., Any]) -> Callable[[Any, object], Any]:
    """A method with an additional argument for the requests' context, even if it does not use it."""
    if "context" in inspect.signature(function).parameters:
        return lambda x, context: function(x, context=context)
    return lambda x, _: function(x)


def _counted_predict(
    predict: Callable[[Any, object], Any], original: Callable[..., Any], batch: FormedBatch, tally: Tally
) -> Callable[..., Any]:
    """A function of the same kind as the original, because LitServe checks that."""

    @contextlib.contextmanager
    def counted() -> Iterator[None]:
        """Count an execution, unless it fails or is abandoned."""
        size, began = batch.size, time.perf_counter_ns()
        yield
        tally.executed(size, time.perf_counter_ns() - began)

    if inspect.isasyncgenfunction(original):

        async def counted_async_stream(x: object, context: object = None) -> AsyncIterator[object]:
            with counted():
                async with contextlib.aclosing(predict(x, context)) as stream:
                    async for part in stream:
                        yield part

        return counted_async_stream
    if inspect.iscoroutinefunction(original):

        async def counted_coroutine(x: object, context: object = None) -> object:
            with counted():
                return await predict(x, context)

        return counted_coroutine
    if inspect.isgeneratorfunction(original):

        def counted_stream(x: object, context: object = None) -> Iterator[object]:
            with counted():
                yield from predict(x, context)

        return counted_stream

    def counted_call(x: object, context: object = None) -> object:
        with counted():
            return predict(x, context)

    return counted_call


def count_steps(lit_api: Any, tally: Tally) -> None:  # noqa: ANN401 - LitServe is not imported here
    """Count each ``step`` of continuous batching, with the number of advanced sequences as items."""
    step = lit_api.step

    def counted_step(*args: object, **more: object) -> Any:  # noqa: ANN401
        began = time.perf_counter_ns()
        outputs = step(*args, **more)
        if outputs:
            tally.executed(len({output.uid for output in outputs}), time.perf_counter_ns() - began)
        return outputs

    lit_api.step = counted_step


def prepare(litserve: Any, *, host: str, port: int, folder: Path) -> None:  # noqa: ANN401 - see `main`
    """Make each ``LitServer`` count, and run on the given port.

    Its methods are replaced in place, because apps subclass and pickle the class, and check for it.

    Args:
        folder: Folder of facts and tallies.
    """
    server_class = litserve.LitServer
    litserve.Callback.register(WorkerCallback)
    init, run = server_class.__init__, server_class.run

    @functools.wraps(init)
    def counting_init(server: Any, *args: Any, callbacks: Any = None, **more: Any) -> None:  # noqa: ANN401
        given = [] if callbacks is None else callbacks if isinstance(callbacks, list) else [callbacks]
        init(server, *args, callbacks=[*given, WorkerCallback(folder)], **more)

    @functools.wraps(run)
    def moved_run(server: Any, *args: Any, **more: Any) -> None:  # noqa: ANN401
        asked = inspect.signature(run).bind(server, *args, **more).arguments
        asked.pop("self")
        extra = {"access_log": False, **asked.pop("kwargs", {})}
        options = {**asked, **extra, "host": host, "port": port, "generate_client_file": False}
        apis = list(server.litapi_connector)
        facts = {
            "version": importlib.metadata.version("litserve"),
            "server": _server_facts(server, options),
            "apis": {api.api_path: _api_facts(server, api) for api in apis},
        }
        write_facts(folder / FACTS, facts)
        server.app.add_middleware(
            AnswerCounter,
            folder=folder,
            paths={asked_at: api.api_path for api in apis for asked_at in _http_paths(api)},
            states=lambda: dict(server.workers_setup_status),
        )
        run(server, **options)

    server_class.__init__ = counting_init
    server_class.run = moved_run
    with contextlib.suppress(ImportError, AttributeError):
        queues: Any = importlib.import_module("litserve.transport.zmq_queue")
        queues.generate_random_zmq_address = functools.partial(queues.generate_random_zmq_address, str(folder))


def _http_paths(lit_api: Any) -> list[str]:  # noqa: ANN401 - LitServe is not imported here
    """HTTP paths of an API: its own path, or those of its spec."""
    return [path for path, _, _ in lit_api.spec.endpoints] if lit_api.spec else [lit_api.api_path]


def _server_facts(server: Any, options: dict[str, Any]) -> dict[str, object]:  # noqa: ANN401
    """Settings of the server that hold for all its APIs."""
    workers = sum(_workers_of(server, lit_api) for lit_api in server.litapi_connector)
    devices = [",".join(device) if isinstance(device, list) else device for device in server.devices]
    return {
        "devices": " ".join(map(str, devices)),
        "timeout": server.timeout,
        "fast_queue": server.use_zmq,
        "restart_workers": server.restart_workers,
        "num_api_servers": options.get("num_api_servers") or workers,
    }


def _workers_of(server: Any, lit_api: Any) -> int:  # noqa: ANN401 - LitServe is not imported here
    """Number of workers of an API."""
    return len(server._inference_workers_config_for_api(lit_api.api_path))  # noqa: SLF001 - told nowhere else


def _api_facts(server: Any, lit_api: Any) -> dict[str, object]:  # noqa: ANN401 - LitServe is not imported here
    """Settings of one of its APIs."""
    return {
        "max_batch_size": lit_api.max_batch_size,
        "batch_timeout": lit_api.batch_timeout,
        "workers": _workers_of(server, lit_api),
        "stream": lit_api.stream,
        "loop": type(lit_api.loop).__name__,
        "counted": is_counted(lit_api),
        "spec": None if lit_api.spec is None else type(lit_api.spec).__name__,
    }


def main() -> None:
    """Run the app."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("app", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    prepare(importlib.import_module("litserve"), host=options.host, port=options.port, folder=options.folder)
    sys.argv[0] = str(options.app)
    run_as_main(options.app, options.arguments, scratch=options.folder)
