"""Answers that a server left in shared memory, put together as it would have sent them."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.kserve import binary_size, http_header
from pytest_gpuserve.load.kserve_arrays import described, from_place, shown
from pytest_gpuserve.load.kserve_grpc import decode_answer, grpc_response
from pytest_gpuserve.load.wire import unwritten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuserve.load.kserve_arrays import Tensors
    from pytest_gpuserve.load.request import Expect

ALIGNMENT: Final = 64
"""Bytes of a cache line: no two lanes, and no two tensors, share one."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the outputs lie in a lane's place, one after the other; alike for all lanes and payloads.

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
        """Offset and size of each output within a lane's place."""
        found, end = {}, 0
        for name, byte_size in self.outputs:
            found[name] = (end, byte_size)
            end += padded(byte_size)
        return found

    @property
    def lane_bytes(self) -> int:
        """Bytes of a lane's place."""
        return sum(padded(byte_size) for _, byte_size in self.outputs)

    def whole(self, body: bytes) -> bytes:
        """Return an answer as the server would have sent it, with its tensors in it.

        Args:
            body: The bytes of its lane's place, and after them what the server sent, by HTTP or gRPC.

        Raises:
            ValueError: It is no such answer, it has data in itself instead of its place, or a place is as it was before
                the request; the text is one line.
        """
        answer = body[self.lane_bytes :]
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
    """Up to a multiple of the alignment."""
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
    """The bytes of an output, from its place."""
    name, datatype, shape = described(name, datatype, shape, {})
    if name not in left:
        raise ValueError(f"output {shown(name)} has no place in shared memory")
    if carried:
        raise ValueError(f"output {shown(name)} came in the answer, not through shared memory")
    place = left[name]
    if math.prod(shape) and place == unwritten(len(place)):
        raise ValueError(f"output {shown(name)} was not written to its place in shared memory")
    return from_place(name, datatype, shape, place)
