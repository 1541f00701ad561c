"""A small real LitServe app for tests: it sleeps instead of inferring, counts for itself, and misbehaves on demand."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import litserve as ls
import litserve_words  # type: ignore[import-not-found]  # a module beside the app, which only an app that is run as itself can import
from litserve.loops import ContinuousBatchingLoop
from litserve.loops.continuous_batching_loop import Output
from litserve.utils import LitAPIStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO


def options() -> argparse.Namespace:
    """The app's own arguments."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--work-ms", type=float, default=4.0, help="time of a batch")
    parser.add_argument("--max-batch-size", type=int, default=8)
    parser.add_argument("--batch-timeout", type=float, default=0.01)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--count-in", type=Path, help="folder for the count that each worker keeps itself")
    parser.add_argument("--kind", default="plain")
    parser.add_argument("--fast-queue", action="store_true")
    parser.add_argument("--restart-workers", action="store_true")
    parser.add_argument("--bad-setup", action="store_true")
    parser.add_argument("--choose-size", type=int, default=0, help="the largest batch, chosen only by setup")
    parser.add_argument("--exit-at-import", action="store_true")
    return parser.parse_args()


class Words(ls.LitAPI):
    """Puts texts into upper case; ``die`` ends its worker, ``fail`` raises."""

    def __init__(self, arguments: argparse.Namespace, **more: object) -> None:
        super().__init__(**more)
        self.arguments = arguments

    def setup(self, device: str) -> None:
        """Predict once, which is no request, and open the count."""
        worker = os.environ["LITSERVE_WORKER_ID"]
        if self.arguments.bad_setup:
            raise RuntimeError("no weights here")
        self.count: TextIO | None = None
        self.predict("warm")
        if self.arguments.choose_size:
            self.max_batch_size = self.arguments.choose_size
        if self.arguments.count_in is not None:
            name = f"{self.api_path.strip('/')}-{worker}-{os.getpid()}"
            self.count = (self.arguments.count_in / name).open("a", encoding="utf-8", buffering=1)

    def work(self, texts: list[str]) -> list[str]:
        """Count a batch and work on it."""
        if "die" in texts:
            os._exit(3)
        if "fail" in texts:
            raise ValueError("this text cannot be read")
        if self.count is not None:
            self.count.write(f"{len(texts)}\n")
        time.sleep(self.arguments.work_ms / 1000)
        return [litserve_words.upper(text) for text in texts]


class Plain(Words):
    """Answers a batch, or a single text where nothing is batched; looks at the requests' context."""

    def decode_request(self, request: dict[str, str], context: dict[str, str]) -> str:
        """Take the text, and remember it."""
        context["text"] = request["text"]
        return request["text"]

    def predict(self, x: list[str] | str) -> list[str] | str:
        """Work on it."""
        return self.work(x) if isinstance(x, list) else self.work([x])[0]

    def encode_response(self, output: str, context: dict[str, str]) -> dict[str, str]:
        """Send the text."""
        return {"text": output, "was": context["text"]}


class Stream(Words):
    """Answers letter by letter."""

    def decode_request(self, request: dict[str, str]) -> str:
        """Take the text."""
        return request["text"]

    def predict(self, x: list[str] | str) -> Iterator[list[str] | str]:
        """Work on a batch, and give it away by letters."""
        texts = self.work(x) if isinstance(x, list) else self.work([x])
        for letters in zip(*texts, strict=True):
            yield list(letters) if isinstance(x, list) else letters[0]

    def encode_response(self, output: Iterator[str]) -> Iterator[str]:
        """Send the letters."""
        yield from output


class Steps(Words):
    """Answers letter by letter, all texts that are there side by side."""

    def setup(self, device: str) -> None:
        """Begin with no text."""
        super().setup(device)
        self.left: dict[str, str] = {}

    def predict(self, x: str) -> None:
        """Nothing is predicted at once."""

    def add_request(self, uid: str, request: dict[str, str]) -> None:
        """Take a text."""
        self.left[uid] = litserve_words.upper(request["text"])

    def has_active_requests(self) -> bool:
        """Whether a text is not finished."""
        return bool(self.left)

    def has_capacity(self) -> bool:
        """Whether there is room for another one."""
        return len(self.left) < 8

    def step(self, outputs: list[Output] | None) -> list[Output]:
        """The next letter of each."""
        texts = dict(self.left)
        if self.count is not None:
            self.count.write(f"{len(texts)}\n")
        time.sleep(self.arguments.work_ms / 1000)
        made = [Output(uid, text[0], LitAPIStatus.OK) for uid, text in texts.items()]
        for uid, text in texts.items():
            if len(text) == 1:
                del self.left[uid]
                made.append(Output(uid, "", LitAPIStatus.FINISH_STREAMING))
            else:
                self.left[uid] = text[1:]
        return made


KINDS = {"plain": Plain, "stream": Stream, "steps": Steps}

if __name__ == "__main__":
    given = options()
    if given.exit_at_import:
        sys.exit("no weights here")
    api = KINDS[given.kind](
        given,
        max_batch_size=given.max_batch_size,
        batch_timeout=given.batch_timeout,
        stream=given.kind.endswith(("stream", "steps")),
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
