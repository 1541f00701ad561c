"""A server whose service time is known, run as a program: PORT, seconds of service.

It answers each request so long after it was read, within the millisecond by which asyncio rounds its timers.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import Final, cast

END_OF_REQUEST: Final = b"\r\n\r\n"
ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nok"


class Timed(asyncio.Protocol):
    """A connection."""

    def __init__(self, service_seconds: float) -> None:
        self._service_seconds = service_seconds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer when it is time."""
        # Its clients send small requests without a body, each in one piece, and wait for the answer.
        assert data.endswith(END_OF_REQUEST), data
        asyncio.get_running_loop().call_later(self._service_seconds, self._transport.write, ANSWER)


async def main(port: int, service_seconds: float) -> None:
    """Serve until the process is ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(Timed, service_seconds), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
