"""Doubling behind LitServe; by its options it misbehaves, streams or batches continuously."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

import litserve as ls
from doubling import MOST_AT_ONCE, WAIT_SECONDS, work
from litserve.loops import ContinuousBatchingLoop
from litserve.loops.continuous_batching_loop import Output
from litserve.utils import LitAPIStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

DIE, FAIL = 666, 13
"""Numbers that end a worker, and that it cannot double."""


def options() -> argparse.Namespace:
    """The app's own arguments."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--max-batch-size", type=int, default=MOST_AT_ONCE)
    parser.add_argument("--batch-timeout", type=float, default=WAIT_SECONDS)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--kind", default="plain")
    parser.add_argument("--fast-queue", action="store_true")
    parser.add_argument("--restart-workers", action="store_true")
    parser.add_argument("--bad-setup", action="store_true")
    parser.add_argument("--choose-size", type=int, default=0, help="the largest batch, chosen only by setup")
    return parser.parse_args()


class Configured(ls.LitAPI):
    """Common part of all kinds."""

    def __init__(self, arguments: argparse.Namespace, **more: object) -> None:
        super().__init__(**more)
        self.arguments = arguments

    def setup(self, device: str) -> None:
        """Choose the largest batch."""
        if self.arguments.bad_setup:
            raise RuntimeError("no weights here")
        if self.arguments.choose_size:
            self.max_batch_size = self.arguments.choose_size


class Doubling(Configured):
    """Doubles a batch, or a single number where nothing is batched; looks at the requests' context."""

    def decode_request(self, request: dict[str, int], context: dict[str, int]) -> int:
        """Read a request, and remember it."""
        context["input"] = request["input"]
        return request["input"]

    def predict(self, x: list[int] | int) -> list[int] | int:
        """Answer a batch."""
        return doubled(x) if isinstance(x, list) else doubled([x])[0]

    def encode_response(self, output: int, context: dict[str, int]) -> dict[str, int]:
        """Write an answer."""
        return {"output": output, "input": context["input"]}


def doubled(numbers: list[int]) -> list[int]:
    """Work on a batch."""
    if DIE in numbers:
        os._exit(3)
    if FAIL in numbers:
        raise ValueError("this number cannot be read")
    work(len(numbers))
    return [2 * number for number in numbers]


class Digits(Configured):
    """Answers digit by digit."""

    def decode_request(self, request: dict[str, int]) -> int:
        """Read a request."""
        return request["input"]

    def predict(self, x: list[int] | int) -> Iterator[list[str] | str]:
        """Work on a batch, and give it away by digits."""
        for digits in zip(*map(str, doubled(x if isinstance(x, list) else [x])), strict=True):
            yield list(digits) if isinstance(x, list) else digits[0]

    def encode_response(self, output: Iterator[str]) -> Iterator[str]:
        """Send the digits."""
        yield from output


class Steps(Configured):
    """Answers digit by digit; all present numbers advance together."""

    def setup(self, device: str) -> None:
        """Begin with no number."""
        super().setup(device)
        self.left: dict[str, str] = {}

    def predict(self, x: int) -> None:
        """Nothing is predicted at once."""

    def add_request(self, uid: str, request: dict[str, int]) -> None:
        """Take a number."""
        self.left[uid] = str(2 * request["input"])

    def has_active_requests(self) -> bool:
        """Whether a number is not finished."""
        return bool(self.left)

    def has_capacity(self) -> bool:
        """Whether there is room for another number."""
        return bool(len(self.left) < MOST_AT_ONCE)

    def step(self, outputs: list[Output] | None) -> list[Output]:
        """The next digit of each."""
        # Others come while it works.
        there = dict(self.left)
        work(len(there))
        made = [Output(uid, digits[0], LitAPIStatus.OK) for uid, digits in there.items()]
        made += [Output(uid, "", LitAPIStatus.FINISH_STREAMING) for uid, digits in there.items() if len(digits) == 1]
        self.left = {uid: digits[uid in there :] for uid, digits in self.left.items() if digits[uid in there :]}
        return made


KINDS = {"plain": Doubling, "digits": Digits, "steps": Steps}

if __name__ == "__main__":
    given = options()
    api = KINDS[given.kind](
        given,
        max_batch_size=given.max_batch_size,
        batch_timeout=given.batch_timeout,
        stream=given.kind != "plain",
        loop=ContinuousBatchingLoop() if given.kind == "steps" else "auto",
    )
    server = ls.LitServer(
        api,
        accelerator="cpu",
        workers_per_device=given.workers,
        fast_queue=given.fast_queue,
        restart_workers=given.restart_workers,
    )
    server.run(port=8000)
