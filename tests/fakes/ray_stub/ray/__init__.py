"""Ray's library as far as a load needs it, in one process: an actor is an object, a call of it a thread's.

Found instead of Ray's by who has the folder above in its PYTHONPATH. The variable ``STUB_RAY`` says how it fails:
``refuse`` to be joined, or ``hang`` in it, after a file of the name in ``STUB_RAY_FILE`` was made; ``put`` fails with
what all actors are given, ``place`` with an actor.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__version__ = "2.99.0"

_threads = ThreadPoolExecutor(32)


class _Reference:
    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def future(self) -> Future[Any]:
        """As an object reference has it."""
        return self._future


class _Method:
    def __init__(self, method: Callable[..., object]) -> None:
        self._method = method

    def remote(self, *arguments: object) -> _Reference:
        """Call it."""
        return _Reference(_threads.submit(self._method, *arguments))


class _Handle:
    def __init__(self, actor: object) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> _Method:
        return _Method(getattr(self._actor, name))


class _Class:
    def __init__(self, made: type) -> None:
        self._made = made

    def remote(self) -> _Handle:
        """Make an actor."""
        _fail("place")
        return _Handle(self._made())


class _Context:
    def get_node_id(self) -> str:
        """The only one."""
        return "node"


def init(address: str, **options: object) -> None:
    """Join the cluster, or not."""
    sys.stdout.write(f"joined {address} {sorted(options)}\n")
    sys.stderr.write("something to say\n")
    fails = os.environ.get("STUB_RAY")
    if fails == "refuse":
        raise ConnectionError("nobody\nis there")
    if fails == "hang":
        Path(os.environ["STUB_RAY_FILE"]).touch()
        time.sleep(600)


def _fail(method: str) -> None:
    if os.environ.get("STUB_RAY") == method:
        raise RuntimeError(f"{method}\ncannot be")


def put(value: object) -> object:
    """What an actor is given of it is the same."""
    _fail("put")
    return value


def remote(**options: object) -> Callable[[type], _Class]:
    """Make a class one of actors."""
    del options
    return partial(_Class)


def nodes() -> list[dict[str, str]]:
    """There is one."""
    return [{"NodeID": "node", "NodeManagerAddress": "10.9.9.9"}]


def get_runtime_context() -> _Context:
    """Where an actor is."""
    return _Context()


def kill(handle: _Handle) -> None:
    """It ends with the process."""


def shutdown() -> None:
    """Leave."""
    sys.stdout.write("left\n")
