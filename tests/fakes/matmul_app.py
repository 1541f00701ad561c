"""A small real mosec app for measurements: its batches take real work, a chain of matrix products on one core."""

from __future__ import annotations

import argparse
from functools import lru_cache

import numpy as np
from mosec import Server, Worker


@lru_cache(maxsize=1)
def options() -> argparse.Namespace:
    """The app's own arguments, in the server process and in its spawned workers."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--products", type=int, default=400, help="matrix products of a batch")
    parser.add_argument("--size", type=int, default=64, help="rows and columns of a matrix")
    parser.add_argument("--max-batch-size", type=int, default=8)
    return parser.parse_known_args()[0]


class Multiply(Worker):
    """Answers each body in upper case, after the products of its batch."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.left = random.standard_normal((options().size, options().size)) / options().size ** 0.5
        self.state = np.eye(options().size)
        self.next = np.empty_like(self.state)

    def deserialize(self, data: bytes) -> bytes:
        """Take the body as it is."""
        return data

    def serialize(self, data: bytes) -> bytes:
        """Send the answer as it is."""
        return data

    def forward(self, data: list[bytes]) -> list[bytes]:
        """Work on a batch."""
        for _ in range(options().products):
            np.dot(self.left, self.state, out=self.next)
            self.state, self.next = self.next, self.state
        # The product of many would vanish or overflow, and slow numbers are another workload.
        np.fill_diagonal(self.state, 1.0)
        np.clip(self.state, -1.0, 1.0, out=self.state)
        return [body.upper() for body in data]


if __name__ == "__main__":
    server = Server()
    server.append_worker(Multiply, num=1, max_batch_size=options().max_batch_size, max_wait_time=2)
    server.run()
