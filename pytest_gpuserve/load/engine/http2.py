"""gRPC: unary calls on HTTP/2, whose messages were serialised once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.engine.http2_codec import HeaderBlocks, Requests, request_block
from pytest_gpuserve.load.engine.http2_connection import Connection, Shared
from pytest_gpuserve.load.engine.opening import resolve

if TYPE_CHECKING:
    from pytest_gpuserve.load.engine.reactor import Reactor
    from pytest_gpuserve.load.engine.transport import Issuer, Slot
    from pytest_gpuserve.load.wire import Endpoint

SLOTS: Final = 6
"""Most slots on one connection. Triton's own client library shares a connection by as many
(``TRITON_CLIENT_GRPC_CHANNEL_MAX_SHARE_COUNT``), so this is how a server is loaded by its users."""


class Http2:
    """The transport of gRPC: a payload is the serialised message, and so is an answer's body.

    The server's MAX_CONCURRENT_STREAMS is respected: where it is less than the slots of a connection, requests wait.

    Args:
        endpoint: Where it goes.
        reactor: Who waits for its sockets.
        issuer: Who is told.
        connect_timeout_ns: After which a connection attempt is given up.

    Raises:
        OSError: The host is unknown.
        UsageProblem: The metadata cannot be sent.
    """

    def __init__(self, endpoint: Endpoint, reactor: Reactor, issuer: Issuer, connect_timeout_ns: int) -> None:
        self._shared = Shared(
            resolve(endpoint, ("h2",)),
            reactor,
            issuer,
            connect_timeout_ns,
            Requests(request_block(endpoint)),
            HeaderBlocks(),
        )
        self._connections: dict[Connection, None] = {}
        self._roomy: dict[Connection, None] = {}

    def open(self, place: int) -> Slot:
        """Begin to open a slot, on a connection that has room or on a new one."""
        connection = next(iter(self._roomy), None) or Connection(self._shared, self._changed)
        slot = connection.join(place)
        self._connections[connection] = None
        self._changed(connection)
        return slot

    def take_transfer(self) -> None:
        """Its slots do not time it: frames of several requests go out together."""

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._connections):
            connection.close()

    def _changed(self, connection: Connection) -> None:
        if connection.closed:
            self._connections.pop(connection, None)
        if connection.takes_more and connection.slots < SLOTS:
            self._roomy[connection] = None
        else:
            self._roomy.pop(connection, None)
