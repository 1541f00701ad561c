"""A small real mosec app for tests: it sleeps instead of inferring."""

from __future__ import annotations

import argparse
import time
from functools import lru_cache

from mosec import Server, Worker


@lru_cache(maxsize=1)
def options() -> argparse.Namespace:
    """The app's own arguments, in the server process and in its spawned workers."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--work-ms", type=float, default=4.0, help="time of a batch")
    parser.add_argument("--max-batch-size", type=int, default=8)
    return parser.parse_known_args()[0]


class Work(Worker):
    """Answers each body in upper case."""

    def deserialize(self, data: bytes) -> bytes:
        """Take the body as it is."""
        return data

    def serialize(self, data: bytes) -> bytes:
        """Send the answer as it is."""
        return data

    def forward(self, data: list[bytes]) -> list[bytes]:
        """Work on a batch."""
        time.sleep(options().work_ms / 1000)
        return [body.upper() for body in data]


if __name__ == "__main__":
    server = Server()
    server.append_worker(Work, num=1, max_batch_size=options().max_batch_size, max_wait_time=5)
    server.run()
