"""A queue that speaks HTTP. Arguments: PORT RATE HABIT...

One worker serves requests in order, each for an exponential time of mean 1/RATE seconds; with the habit ``constant``
each for that time. It sleeps instead of working, until moments that it reckons with in advance, so that a busy machine
does not make it slower for long. With ``refuses=N`` it answers with status 503 where N requests are waiting already.
"""

import asyncio
import random
import sys

port, rate = int(sys.argv[1]), float(sys.argv[2])
habits = dict(word.partition("=")[::2] for word in sys.argv[3:])
mean_seconds = 1 / rate
draw = random.Random(port)
waiting = 0
free_seconds = 0.0


def service_seconds() -> float:
    """How long the next request takes."""
    return mean_seconds if "constant" in habits else draw.expovariate(1 / mean_seconds)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of a connection, one after the other."""
    global free_seconds, waiting  # noqa: PLW0603 -- the one queue of all connections
    loop = asyncio.get_running_loop()
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0
            )
            body = await reader.readexactly(length)
            if waiting >= int(habits.get("refuses", 1 << 60)):
                writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
                continue
            waiting += 1
            free_seconds = max(free_seconds, loop.time()) + service_seconds()
            await asyncio.sleep(free_seconds - loop.time())
            waiting -= 1
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body.upper()))
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main() -> None:
    """Serve for ever."""
    async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
        await server.serve_forever()


asyncio.run(main())
