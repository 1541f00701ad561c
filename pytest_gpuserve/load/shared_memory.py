"""Tensors through system shared memory, for a KServe v2 server on this host: requests without data.

The inputs are in one region, the outputs in another one. In that, each slot (a request in flight) has its own place.
multiprocessing's resource tracker removes the regions of an owner that was killed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.load.kserve import Comparator, Place, decode_answer, extra, one_line, raw_bytes
from pytest_gpuserve.load.wire import Outputs, unwritten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuserve.load.kserve import Inference, Tensors
    from pytest_gpuserve.load.request import Expect

FOLDER: Final = Path("/dev/shm")  # noqa: S108 -- where Linux keeps POSIX shared memory
PREFIX: Final = "gpuserve-tensors-"

_LINE: Final = 64
"""Bytes of a cache line: two slots, or two tensors, never share one."""

_FORGET_SECONDS: Final = 5.0

T = TypeVar("T")

Ask = Callable[[str, str, bytes], tuple[int, str]]
"""Sends a method, a path below ``/v2/systemsharedmemory/region/``, and a body to a server; returns status and text."""


@dataclass(frozen=True)
class Layout:
    """Layout of the outputs in a slot's place, one after the other; the same for all slots and requests.

    Args:
        sizes: Name of each output, and the most bytes that it takes.

    Raises:
        UsageProblem: The outputs are missing, or a size is not positive.
    """

    sizes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if not self.sizes or not all(type(size) is int and size > 0 for _, size in self.sizes):
            told = "infer(shared_memory=...) takes each output with its largest size in bytes"
            raise UsageProblem(told, found=repr(dict(self.sizes)), remedies=['{"OUTPUT": array.nbytes}'])

    def places(self, begin: int = 0) -> dict[str, slice]:
        """Ranges of the outputs in a slot's place with this begin."""
        found = {}
        for name, size in self.sizes:
            found[name] = slice(begin, begin + size)
            begin += size + -size % _LINE
        return found

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot's place."""
        return sum(size + -size % _LINE for _, size in self.sizes)

    def decode(self, body: bytes) -> Tensors:
        """Read an answer: the bytes of its slot's place, and then the server's own. Raises ValueError."""
        return decode_answer(body[self.slot_bytes :], {name: body[at] for name, at in self.places().items()})

    def expecting(self, expect: Expect | None) -> Expect | None:
        """Let a comparator read tensors from their places. Raises UsageProblem for another check."""
        if expect is None or isinstance(expect, Comparator):
            return expect and replace(expect, decode=self.decode)
        raise UsageProblem("through shared memory, expect= takes arrays by name, or a result of close_to or equal_to")


class SharedTensors(NamedTuple):
    """Requests with tensors in shared memory: for each payload its inference in the form of each slot."""

    payloads: tuple[tuple[Inference, ...], ...]
    outputs: Outputs

    def made_by(self, make: Callable[[Inference], T]) -> list[list[T]]:
        """Apply a function to each inference."""
        return [[make(inference) for inference in slots] for slots in self.payloads]


@contextlib.contextmanager
def share(inferences: Sequence[Inference], layout: Layout, slots: int, ask: Ask) -> Iterator[SharedTensors]:
    """Own the memory of this many requests in flight, which the server maps for the block.

    Raises:
        UsageProblem: Shared memory is full.
        ServerFailed: The server does not map the memory.
    """
    name = f"{PREFIX}{os.getpid()}-{uuid.uuid4().hex[:12]}"
    data, inputs = bytearray(), []
    for inference in inferences:
        inputs.append(dict[tuple[str, str], Place]())
        for each, array in inference.inputs.items():
            raw = raw_bytes(array)
            inputs[-1]["input", each] = Place(f"{name}-in", len(raw), len(data))
            data += raw + bytes(-len(raw) % _LINE)
    size = layout.slot_bytes
    outputs = [
        {("output", each): Place(f"{name}-out", at.stop - at.start, at.start) for each, at in places.items()}
        for places in (layout.places(slot * size) for slot in range(slots))
    ]
    with contextlib.ExitStack() as stack:
        for region, content in ((f"{name}-in", bytes(data) or b"\0"), (f"{name}-out", unwritten(slots * size))):
            stack.enter_context(_region(region, content))
            stack.callback(_forget, ask, region)
            described = {"key": f"/{region}", "offset": 0, "byte_size": len(content)}
            status, said = ask("POST", f"{region}/register", json.dumps(described).encode())
            if status != http.client.OK:
                help_ = ["run the server on this host as the same user; a container needs --ipc=host"]
                found = f"status {status}: {one_line(said)}"
                raise ServerFailed("the server does not map shared memory of this host", found=found, remedies=help_)
        forms = zip(inferences, inputs, strict=True)
        yield SharedTensors(
            tuple(tuple(replace(each, places={**places, **out}) for out in outputs) for each, places in forms),
            Outputs(file=str(FOLDER / f"{name}-out"), slot_bytes=size),
        )


@contextlib.contextmanager
def _region(name: str, content: bytes) -> Iterator[None]:
    """Own a region of shared memory with this content."""
    memory = extra("tritonclient.utils.shared_memory")
    with contextlib.ExitStack() as stack:
        try:
            handle = memory.create_shared_memory_region(name, name, len(content), create_only=True)
            stack.callback(memory.destroy_shared_memory_region, handle)
            with (FOLDER / name).open("r+b") as file:
                # Reserved at once: a missing page would end the process that touches it first with SIGBUS.
                os.posix_fallocate(file.fileno(), 0, len(content))
        except (OSError, memory.SharedMemoryException) as problem:
            help_ = ["take fewer users or payloads", "give a container more with --shm-size"]
            found = str(problem.__cause__ or problem)
            raise UsageProblem(f"{FOLDER} has no room for {len(content)} bytes", found=found, remedies=help_) from None
        memory.set_shared_memory_region(handle, [extra("numpy").frombuffer(content, "u1")])
        yield


def _forget(ask: Ask, region: str) -> None:
    """Let the server forget a region, and wait until it has; a server that is gone has forgotten it."""
    end = time.monotonic() + _FORGET_SECONDS
    with contextlib.suppress(ServerFailed):
        # Triton answers before it releases a request. It keeps a region of such a request a little longer, or (before
        # 2.53) refuses to forget it.
        ask("POST", f"{region}/unregister", b"")
        while ask("GET", f"{region}/status", b"")[0] == http.client.OK and time.monotonic() < end:
            time.sleep(0.01)
            ask("POST", f"{region}/unregister", b"")
