"""DistilBERT behind mosec: text in, ``POSITIVE`` or ``NEGATIVE`` out, tokenizing in processes of its own.

Run ``python distilbert_mosec.py --inference-workers 1 --port 8000`` and post plain text to ``/inference``; ``--help``
lists these arguments and mosec's own. ``--slowdown 0.3`` makes every batch take 30 % longer: the way to see a gate
turn red.

mosec starts its workers by ``spawn``: they import this file anew, as ``__mp_main__``, and inherit ``sys.argv``. So
the file does nothing at import, and each worker reads the command line itself.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mosec import DecodingError, Server, Worker
from mosec.args import build_arguments_parser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suites.distilbert.apps.distilbert_model import DEFAULT_SEED, SIZES, Classifier, load_tokenizer
else:
    # A script finds its neighbours by their bare names.
    from distilbert_model import DEFAULT_SEED, SIZES, Classifier, load_tokenizer

WARM_UP_TOKENS = 40
"""Length of every sequence of the warm-up batch, which has as many as one batch can have."""

WARM_UP_ID = 4
"""An id that every vocabulary has; which one it is does not change the time."""


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line: this app's arguments and mosec's.

    Args:
        arguments: The command line without the program's name.

    Returns:
        The options by name.

    Raises:
        SystemExit: An argument has a wrong value, or is known neither here nor to mosec.
    """
    # mosec ignores what it does not know, so a misspelt argument would run another server than the one asked for.
    # With mosec's own parser as parent the line is read strictly.
    parser = argparse.ArgumentParser(
        description="DistilBERT behind mosec", parents=[build_arguments_parser()], add_help=False, allow_abbrev=False
    )
    parser.add_argument("--inference-workers", type=positive_integer, default=1, help="inference processes (default 1)")
    parser.add_argument("--size", choices=sorted(SIZES), default="full", help="dimensions of the model (default full)")
    parser.add_argument(
        "--max-batch-size", type=positive_integer, default=32, help="most requests in a batch (default 32)"
    )
    # At least 1: mosec takes 0 for "not given" and would wait its own default of 10 ms.
    parser.add_argument(
        "--max-wait-ms", type=positive_integer, default=10, help="longest wait for a full batch (default 10)"
    )
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="seed of the random weights")
    parser.add_argument("--checkpoint", type=existing_folder, help="local folder with real weights and their vocab.txt")
    parser.add_argument(
        "--threads",
        type=positive_integer,
        help="torch threads of an inference process (default 1 on CPU, else torch's)",
    )
    parser.add_argument(
        "--slowdown",
        type=number_of_zero_or_more,
        # A variable, because an argument would make it another workload, which no baseline is of.
        default=os.environ.get("DISTILBERT_SLOWDOWN", "0"),
        help="0.3 makes every batch take 30 %% longer (default: what DISTILBERT_SLOWDOWN says, else 0)",
    )
    return parser.parse_args(arguments)


class Preprocess(Worker):
    """Turns one text into token ids; imports no torch."""

    def __init__(self) -> None:
        super().__init__()
        self._encode = load_tokenizer(parse_options(sys.argv[1:]).checkpoint)

    def deserialize(self, data: bytes) -> str:
        """Take the body as UTF-8 text.

        Raises:
            DecodingError: It is not UTF-8; the client gets status 400.
        """
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise DecodingError(str(error)) from error

    def forward(self, data: str) -> list[int]:
        """Tokenize one text."""
        return self._encode(data)


class Inference(Worker):
    """Classifies a batch of token id lists."""

    resp_mime_type = "text/plain"

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 -- the tokenizing processes import this file too

        super().__init__()
        options = parse_options(sys.argv[1:])
        self._slowdown: float = options.slowdown
        self._classifier = Classifier(options.size, seed=options.seed, checkpoint=options.checkpoint)
        # On a card torch's own choice stays; on the CPU several workers would fight for the same cores.
        threads = options.threads or (1 if self._classifier.device == "cpu" else None)
        if threads is not None:
            torch.set_num_threads(threads)
        sequence = [WARM_UP_ID] * WARM_UP_TOKENS
        self._batched: bool = options.max_batch_size > 1
        # mosec runs this through `forward` before the worker takes requests.
        self.example = [sequence] * options.max_batch_size if self._batched else sequence

    def forward(self, data: list[list[int]] | list[int]) -> list[str] | str:
        """Classify a batch, or the one sequence that mosec hands over when batching is off."""
        batch = data if self._batched else [data]
        start_ns = time.perf_counter_ns()
        labels = self._classifier.labels(batch)  # type: ignore[arg-type] # `_batched` says which of the two it is
        if self._slowdown:
            _spin_until_ns(start_ns + (1 + self._slowdown) * (time.perf_counter_ns() - start_ns))
        return labels if self._batched else labels[0]

    def serialize(self, data: str) -> bytes:
        """Reply with the bare label: 8 bytes, whichever it is."""
        return data.encode()


def main() -> None:
    """Serve until told to stop."""
    options = parse_options(sys.argv[1:])
    server = Server()
    server.append_worker(Preprocess, num=2 * options.inference_workers)
    server.append_worker(
        Inference,
        num=options.inference_workers,
        max_batch_size=options.max_batch_size,
        max_wait_time=options.max_wait_ms,
    )
    server.run()


def _spin_until_ns(end_ns: float) -> None:
    # Slower code keeps its core busy; a sleep would lend it to the other processes and hide the slowdown.
    while time.perf_counter_ns() < end_ns:
        pass


def positive_integer(text: str) -> int:
    """Read an argument's value; argparse names this function where it is no integer at all."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def number_of_zero_or_more(text: str) -> float:
    """Read an argument's value, which is finite."""
    number = float(text)
    if not math.isfinite(number) or number < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 0 or more")
    return number


def existing_folder(text: str) -> Path:
    """Read an argument's value as a folder that is there."""
    folder = Path(text)
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"no folder {text}")
    return folder.resolve()


if __name__ == "__main__":
    main()
