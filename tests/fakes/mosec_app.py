"""A small real mosec app for tests: it sleeps instead of inferring, and misbehaves on demand."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from functools import lru_cache

from mosec import Server, Worker


@lru_cache(maxsize=1)
def options() -> argparse.Namespace:
    """The app's own arguments, in the server process and in its spawned workers."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--work-ms", type=float, default=4.0, help="time of a batch")
    parser.add_argument("--max-batch-size", type=int, default=8)
    parser.add_argument("--wrong-every", type=int, default=0, help="every so many answers one is wrong")
    parser.add_argument("--die-after", type=int, default=0, help="kill the server after so many items")
    parser.add_argument("--exit-at-start", type=int, default=None, help="leave at once with this exit code")
    parser.add_argument("--start-seconds", type=float, default=0.0, help="time that a worker takes to start")
    return parser.parse_known_args()[0]


class Work(Worker):
    """Answers each body in upper case."""

    def __init__(self) -> None:
        time.sleep(options().start_seconds)
        self.items = 0

    def deserialize(self, data: bytes) -> bytes:
        """Take the body as it is."""
        return data

    def serialize(self, data: bytes) -> bytes:
        """Send the answer as it is."""
        return data

    def forward(self, data: list[bytes]) -> list[bytes]:
        """Work on a batch."""
        time.sleep(options().work_ms / 1000)
        answers = []
        for body in data:
            self.items += 1
            if options().die_after and self.items >= options().die_after:
                sys.stderr.write("the model has fallen over\n")
                sys.stderr.flush()
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(60)
            wrong = options().wrong_every and self.items % options().wrong_every == 0
            answers.append(b"nonsense" if wrong else body.upper())
        return answers


if __name__ == "__main__":
    if options().exit_at_start is not None:
        sys.stderr.write("no weights here\n")
        sys.exit(options().exit_at_start)
    server = Server()
    server.append_worker(Work, num=1, max_batch_size=options().max_batch_size, max_wait_time=5)
    server.run()
