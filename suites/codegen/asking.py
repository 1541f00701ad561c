"""Asking a running Triton one question at a time, outside of a load, with the very bytes that a load sends."""

from __future__ import annotations

import http.client
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpuserve.load.kserve_grpc import RPC, decode_answer
from pytest_gpuserve.measure.counters import counted_between

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.servers.instance import Instance
    from pytest_gpuserve.trial.handle import ServerHandle

Protocol = Literal["http", "grpc"]

TIMEOUT_SECONDS = 60.0
"""Of one answer: a deadline that only a hanging server reaches."""


class Refused(Exception):
    """The server answered with an error, whose text this is."""


@dataclass(frozen=True)
class Running:
    """A running server.

    Args:
        server: Makes the requests.
        instance: Takes them.
    """

    server: ServerHandle
    instance: Instance

    def ask(self, model: str, tensors: Mapping[str, object], protocol: Protocol = "http") -> dict[str, Any]:
        """Ask a model, and return its outputs as arrays by name.

        Raises:
            Refused: The server answers with an error.
        """
        target = self.server.infer(tensors, model=model, grpc=protocol == "grpc")
        if protocol == "grpc":
            return decode_answer(self._call(target.messages[0]))
        request = target.requests[0]
        return decode_answer(self.post(request.path, request.body, request.headers))

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Send a body and return that of the answer.

        Raises:
            Refused: The status is not 200.
        """
        site = self.instance.site
        connection = http.client.HTTPConnection(site.host, site.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("POST", path, body, dict(headers))
            with connection.getresponse() as answer:
                content = answer.read()
                if answer.status != http.client.OK:
                    raise Refused(f"status {answer.status}: {content.decode(errors='replace')}")
                return content
        finally:
            connection.close()

    def counters(self) -> Counters:
        """What it has counted, at rest: Triton sends an answer before it counts its request."""
        before, counted = None, self.instance.counters()
        while counted is None or counted != before:
            time.sleep(0.2)
            before, counted = counted, self.instance.counters()
        return counted

    def counted_since(self, before: Counters) -> Counters:
        """What it counted since it was at rest before, now that it is again."""
        return counted_between(before, self.counters())

    def _call(self, message: bytes) -> bytes:
        import grpc  # noqa: PLC0415 -- only who speaks it has to have it

        site = self.instance.site
        with grpc.insecure_channel(f"{site.host}:{site.ports['grpc']}") as channel:
            call: Any = channel.unary_unary(RPC)
            try:
                answer: bytes = call(message, timeout=TIMEOUT_SECONDS)
            except grpc.RpcError as problem:
                raise Refused(str(problem)) from None
            return answer
