"""Counts what an HTTP process of LitServe answers, and says when all workers are set up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.servers.inside.litserve_files import ANSWERS, open_tally

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping
    from pathlib import Path
    from typing import TypeAlias

    Message: TypeAlias = MutableMapping[str, Any]
    Receive: TypeAlias = Callable[[], Awaitable[Message]]
    Send: TypeAlias = Callable[[Message], Awaitable[None]]

READY_PATH: Final = "/.gpuserve/ready"
"""Answered with 200 when all workers are set up; LitServe itself serves as soon as the first one is."""


class Answers:
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
            tally.add(1, time.perf_counter_ns() - began)

    async def _say_ready(self, send: Send) -> None:
        states = self._states()
        waiting = sorted(f"{worker}: {state}" for worker, state in states.items() if state != "ready")
        status = 503 if waiting or not states else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": ", ".join(waiting).encode()})
