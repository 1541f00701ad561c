"""Tensors through system shared memory, for a KServe v2 server on this host: requests that carry no data.

The inputs lie in one file under ``/dev/shm``, the outputs in another, where each slot (a request under way at a time)
has a place of its own, so that answers do not overwrite each other. Its owner holds a lock on each file as long as it
lives; a file whose lock is free is a leftover of a killed owner, and the next owner removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import http.client
import itertools
import json
import math
import os
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import LoadFailed, UsageProblem
from pytest_gpuserve.load.kserve import (
    InputTensor,
    OutputRequest,
    RegionSlice,
    binary_size,
    described,
    from_place,
    http_header,
    http_request,
    shown,
)
from pytest_gpuserve.load.kserve_grpc import decode_answer, grpc_message, grpc_response
from pytest_gpuserve.load.wire import Outputs, unwritten
from pytest_gpuserve.process.child import SupervisorProcess
from pytest_gpuserve.process.logs import excerpt
from pytest_gpuserve.process.secrets import secret_headers

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_gpuserve.load.kserve import Inference, Tensors
    from pytest_gpuserve.load.request import Expect, Request

ALIGNMENT: Final = 64
"""Bytes of a cache line: no two slots, and no two tensors, share one."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the outputs lie in a slot's place, one after the other; alike for all slots and payloads.

    Args:
        outputs: The name of each, and the most bytes that it takes.
    """

    outputs: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, outputs: Mapping[str, int], what: str = "share(outputs=...)") -> Layout:
        """Lay out these outputs; ``what`` names the argument that has them.

        Raises:
            UsageProblem: There is none, or a size is none.
        """
        # A list, say, has no sizes.
        sizes = dict(outputs).items() if hasattr(outputs, "keys") else ()
        if not sizes:
            raise UsageProblem(
                f"{what} is told each output with the most bytes that it takes, one at least, not {outputs!r}",
                remedies=['{"OUTPUT": array.nbytes}'],
            )
        for name, byte_size in sizes:
            if type(byte_size) is not int or byte_size < 1:
                raise UsageProblem(
                    f"{what}: output {name!r} takes a whole number of bytes, 1 at least, not {byte_size!r}"
                )
        return cls(tuple(sizes))

    @property
    def places(self) -> dict[str, tuple[int, int]]:
        """Offset and size of each output within a slot's place."""
        found, end = {}, 0
        for name, byte_size in self.outputs:
            found[name] = (end, byte_size)
            end += padded(byte_size)
        return found

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot's place."""
        return sum(padded(byte_size) for _, byte_size in self.outputs)

    def whole(self, body: bytes) -> bytes:
        """Return an answer as the server would have sent it, with its tensors in it.

        Args:
            body: The bytes of its slot's place, and after them what the server sent, by HTTP or gRPC.

        Raises:
            ValueError: It is no such answer, it has data in itself instead of its place, or a place is as it was before
                the request; the text is one line.
        """
        answer = body[self.slot_bytes :]
        left = {name: body[offset : offset + size] for name, (offset, size) in self.places.items()}
        return _whole_http(answer, left) if answer[:1] == b"{" else _whole_grpc(answer, left)

    def decode(self, body: bytes) -> Tensors:
        """Read the tensors of an answer, given as for ``whole``.

        Raises:
            ValueError: As ``whole``.
        """
        return decode_answer(self.whole(body))

    def expecting(self, expect: Expect | None) -> Expect | None:
        """Let what checks whole answers check those whose tensors lie in their places."""
        if expect is None:
            return None
        if isinstance(expect, bytes):
            return self._equals(expect)

        @functools.wraps(expect)
        def check(body: bytes) -> object:
            return expect(self.whole(body))

        return check

    def _equals(self, expected: bytes) -> Callable[[bytes], bool]:
        def is_as_expected(body: bytes) -> bool:
            return self.whole(body) == expected

        return is_as_expected


def padded(byte_size: int) -> int:
    """Round up to a multiple of the alignment."""
    return byte_size + -byte_size % ALIGNMENT


def _whole_http(answer: bytes, left: Mapping[str, bytes]) -> bytes:
    header, end = http_header(answer)
    pieces = []
    for output in header["outputs"]:
        carried = binary_size(output) is not None or "data" in output
        piece = _taken(output.get("name"), output.get("datatype"), output.get("shape"), left, carried=carried)
        output["parameters"] = {"binary_data_size": len(piece)}
        pieces.append(piece)
    if answer[end:].strip():
        raise ValueError(f"an answer with {len(answer) - end} bytes of data, which should lie in shared memory")
    return b"".join([json.dumps(header, separators=(",", ":")).encode(), *pieces])


def _whole_grpc(answer: bytes, left: Mapping[str, bytes]) -> bytes:
    response = grpc_response(answer)
    # Of an output in shared memory Triton sends an empty one, or none.
    carried = any(response.raw_output_contents)
    pieces = []
    for output in response.outputs:
        pieces.append(_taken(output.name, output.datatype, list(output.shape), left, carried=carried))
        output.ClearField("parameters")
    del response.raw_output_contents[:]
    response.raw_output_contents.extend(pieces)
    whole: bytes = response.SerializeToString()
    return whole


def _taken(name: object, datatype: object, shape: object, left: Mapping[str, bytes], *, carried: bool) -> bytes:
    """Return the bytes of an output from its place."""
    name, datatype, shape = described(name, datatype, shape, {})
    if name not in left:
        raise ValueError(f"output {shown(name)} has no place in shared memory")
    if carried:
        raise ValueError(f"output {shown(name)} came in the answer, not through shared memory")
    place = left[name]
    if math.prod(shape) and place == unwritten(len(place)):
        raise ValueError(f"output {shown(name)} was not written to its place in shared memory")
    return from_place(name, datatype, shape, place)


FOLDER: Final = Path("/dev/shm")  # noqa: S108 -- where Linux keeps POSIX shared memory
PREFIX: Final = "gpuserve-tensors-"

_SWEPT_SECONDS: Final = 10.0
_REGISTER_SECONDS: Final = 10.0
_UNREGISTER_SECONDS: Final = 5.0
_TEXT_SHOWN: Final = 300
_MOST_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SharedTensors:
    """Requests whose tensors lie in shared memory; `share` makes them and owns the memory.

    Args:
        payloads: For each payload that rotates, its inference in the form of each slot.
        outputs: Where the answers lie, for the engine.
        layout: How they lie within a slot's place.
    """

    payloads: tuple[tuple[Inference, ...], ...]
    outputs: Outputs
    layout: Layout

    def http_requests(self, expects: Sequence[Expect | None] = ()) -> tuple[tuple[Request, ...], ...]:
        """Return the HTTP request of each payload on each slot; ``expects`` has one check for each payload, or none."""
        checks = expects or [None] * len(self.payloads)
        return tuple(
            tuple(http_request(inference, expect) for inference in slots)
            for slots, expect in zip(self.payloads, checks, strict=True)
        )

    def grpc_messages(self) -> tuple[tuple[bytes, ...], ...]:
        """Return the gRPC message of each payload on each slot."""
        return tuple(tuple(grpc_message(inference) for inference in slots) for slots in self.payloads)

    def decode(self, body: bytes) -> Tensors:
        """Read the tensors of an answer: the bytes of its slot's place, and after them what the server sent.

        Raises:
            ValueError: It is no such answer; the text is one line.
        """
        return self.layout.decode(body)


@contextlib.contextmanager
def share(
    inferences: Sequence[Inference],
    outputs: Mapping[str, int],
    *,
    slots: int,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[SharedTensors]:
    """Own shared memory with these inferences' inputs and a place for their outputs on every slot.

    It is registered with the server through its HTTP API, whatever protocol the requests then take, and unregistered
    and removed at the end, also after a failure.

    Args:
        inferences: The payloads that rotate, with their inputs as bytes, and without outputs of their own.
        outputs: Each output that is asked for, with the most bytes that it takes.
        slots: How many requests may be under way at the same time.
        host: Name or address of the server on this host.
        port: Of its HTTP API.
        tls: How its certificate is checked; None where it speaks plain HTTP.
        headers: Sent along with what is asked of that API, such as a token.

    Raises:
        UsageProblem: An argument is out of range, or shared memory has no room.
        LoadFailed: The server does not take the memory.
    """
    _check(inferences, slots)
    layout = Layout.of(outputs)
    slot_bytes = layout.slot_bytes
    sweep()
    inputs_file, outputs_file = (f"{PREFIX}{os.getpid()}-{uuid.uuid4().hex[:12]}" for _ in range(2))
    with contextlib.ExitStack() as stack:
        placed, data = _place_inputs(inferences)
        # Who is killed cannot remove them; the supervisor then does.
        stack.callback(
            SupervisorProcess.start([FOLDER / inputs_file, FOLDER / outputs_file], log=Path(os.devnull)).release
        )
        stack.enter_context(_file(FOLDER / inputs_file, [data], len(data)))
        lines = itertools.repeat(unwritten(slot_bytes), slots)
        stack.enter_context(_file(FOLDER / outputs_file, lines, slots * slot_bytes))
        server = _Server(host, port, tls, headers or {})
        for name, byte_size in ((inputs_file, len(data)), (outputs_file, slots * slot_bytes)):
            # Before it is tried: an answer that came too late may have registered it.
            stack.callback(server.unregister, name)
            server.register(name, byte_size)
        payloads = tuple(
            tuple(
                replace(
                    inference,
                    inputs=tuple(_in_region(tensor, inputs_file) for tensor in tensors),
                    outputs=tuple(
                        OutputRequest(name, RegionSlice(outputs_file, slot * slot_bytes + offset, byte_size))
                        for name, (offset, byte_size) in layout.places.items()
                    ),
                )
                for slot in range(slots)
            )
            for inference, tensors in zip(inferences, placed, strict=True)
        )
        yield SharedTensors(payloads, Outputs(file=str(FOLDER / outputs_file), slot_bytes=slot_bytes), layout)


def sweep() -> list[str]:
    """Remove what killed owners left; returns the names. Files of living owners, and of other users, stay."""
    removed = []
    for path in FOLDER.glob(f"{PREFIX}*"):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its owner may have removed it meanwhile, and another made a new one of that name.
            if os.fstat(descriptor).st_nlink:
                path.unlink()
                removed.append(path.name)
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return removed


@dataclass(frozen=True, slots=True)
class _Server:
    """The shared-memory part of a server's HTTP API."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    headers: Mapping[str, str]

    def register(self, name: str, byte_size: int) -> None:
        """Let the server map the file of this name as the region of this name."""
        request = {"key": f"/{name}", "offset": 0, "byte_size": byte_size}
        try:
            status, text = self._ask("POST", name, "register", json.dumps(request).encode())
        except (OSError, http.client.HTTPException) as problem:
            raise self._failed("could not be asked to use", f"{type(problem).__name__}: {problem}") from problem
        if status != http.client.OK:
            known = {**os.environ, **secret_headers(self.headers)}
            said = " ".join(excerpt(text, known, most=_TEXT_SHOWN).split())
            raise self._failed("does not take", f"status {status}: {said}")

    def unregister(self, name: str) -> None:
        """Let the server forget the region, and wait until it has; one that is gone has forgotten it."""
        deadline = time.monotonic() + _UNREGISTER_SECONDS
        with contextlib.suppress(OSError, http.client.HTTPException):
            # Triton answers before it lets go of a request. A region of such a request it keeps a little longer, or
            # (before 2.53) refuses to forget.
            while True:
                self._ask("POST", name, "unregister", b"")
                status, _ = self._ask("GET", name, "status", None)
                if status != http.client.OK or time.monotonic() > deadline:
                    return
                time.sleep(0.01)

    def _ask(self, method: str, name: str, action: str, body: bytes | None) -> tuple[int, str]:
        connection = (
            http.client.HTTPConnection(self.host, self.port, timeout=_REGISTER_SECONDS)
            if self.tls is None
            else http.client.HTTPSConnection(self.host, self.port, timeout=_REGISTER_SECONDS, context=self.tls)
        )
        try:
            connection.request(method, f"/v2/systemsharedmemory/region/{name}/{action}", body, dict(self.headers))
            with connection.getresponse() as response:
                return response.status, response.read(_MOST_READ_BYTES).decode(errors="replace")
        finally:
            connection.close()

    def _failed(self, what: str, found: str) -> LoadFailed:
        return LoadFailed(
            f"the server at {self.host}:{self.port} {what} shared memory of this host",
            found=found,
            remedies=[
                "the port is that of the server's HTTP API, and the server supports `system_shared_memory`",
                "it runs on this host as the same user; a container needs --ipc=host",
            ],
        )


def _check(inferences: Sequence[Inference], slots: int) -> None:
    if type(slots) is not int or slots < 1:
        raise UsageProblem(f"share(slots=...) is a whole number of 1 at least, not {slots!r}")
    if not inferences:
        raise UsageProblem("share(...) takes one inference at least")
    for inference in inferences:
        if inference.outputs:
            raise UsageProblem(
                f"an inference of {inference.model} names outputs itself", remedies=["give them as share(outputs=...)"]
            )


def _place_inputs(inferences: Sequence[Inference]) -> tuple[list[list[tuple[InputTensor, int]]], bytes]:
    """Lay all inputs one after the other: of each inference its inputs with their offsets, and the bytes."""
    data = bytearray()
    placed = []
    for inference in inferences:
        tensors = []
        for tensor in inference.inputs:
            if not isinstance(tensor.data, bytes):
                raise UsageProblem(f"input {tensor.name!r} lies in shared memory already")
            tensors.append((tensor, len(data)))
            data += tensor.data.ljust(padded(len(tensor.data)), b"\0")
        placed.append(tensors)
    # A region has one byte at least, though all its tensors be empty.
    return placed, bytes(data) or bytes(ALIGNMENT)


def _in_region(placed: tuple[InputTensor, int], region: str) -> InputTensor:
    tensor, offset = placed
    return replace(tensor, data=RegionSlice(region, offset, len(tensor.data) if isinstance(tensor.data, bytes) else 0))


@contextlib.contextmanager
def _file(path: Path, chunks: Iterable[bytes], byte_size: int) -> Iterator[None]:
    """Own a file of shared memory with this content."""
    try:
        descriptor = _create(path)
    except OSError as problem:
        raise UsageProblem(f"{FOLDER} cannot be used for shared memory", found=str(problem)) from problem
    try:
        try:
            # Reserved at once: a page that there is no room for would end whoever touches it first by SIGBUS.
            os.posix_fallocate(descriptor, 0, byte_size)
        except OSError as problem:
            raise UsageProblem(
                f"{FOLDER} has no room for {byte_size} bytes",
                found=str(problem),
                remedies=["take fewer slots or payloads", "a container is given more with --shm-size"],
            ) from problem
        with open(descriptor, "wb", closefd=False) as file:
            file.writelines(chunks)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _create(path: Path) -> int:
    """Create an empty file, locked by us; another's sweep may have taken it before it was locked: then again.

    Raises:
        OSError: It cannot be created.
    """
    deadline = time.monotonic() + _SWEPT_SECONDS
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            # Who took it is just about to remove it.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.001)
            continue
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return descriptor
        os.close(descriptor)
