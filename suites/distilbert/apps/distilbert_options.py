"""Command line options of both servers on the model, and their classifier."""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from suites.distilbert.apps.distilbert_model import DEFAULT_SEED, GRAD_MODES, SIZES, Classifier
else:
    # A script imports its neighbours by their bare names.
    from distilbert_model import DEFAULT_SEED, GRAD_MODES, SIZES, Classifier

T = TypeVar("T")

WARM_UP_TOKENS = 40
"""Length of every sequence of the warm-up batch, which has the largest number of sequences."""

WARM_UP_ID = 4
"""An id in every vocabulary; its choice does not change the time."""


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `classifier_of` and `slowed` read, and ``--max-batch-size``."""
    parser.add_argument("--size", choices=sorted(SIZES), default="full", help="dimensions of the model (default full)")
    parser.add_argument(
        "--max-batch-size", type=positive_integer, default=32, help="most requests in a batch (default 32)"
    )
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="seed of the random weights")
    parser.add_argument("--checkpoint", type=existing_folder, help="local folder with real weights and their vocab.txt")
    parser.add_argument(
        "--threads",
        type=positive_integer,
        help="torch threads of an inference process (default 1 on CPU, else torch's)",
    )
    parser.add_argument(
        "--grad-mode",
        choices=GRAD_MODES,
        default=GRAD_MODES[0],
        help=f"torch's context that batches run in (default {GRAD_MODES[0]})",
    )
    parser.add_argument(
        "--slowdown",
        type=number_of_zero_or_more,
        # A variable, because an argument would make another workload, which has no baseline.
        default=os.environ.get("DISTILBERT_SLOWDOWN", "0"),
        help="0.3 makes every batch take 30 %% longer (default: what DISTILBERT_SLOWDOWN says, else 0)",
    )


def classifier_of(options: argparse.Namespace, *, masked: bool = True) -> Classifier:
    """Load the requested model, on the GPU if torch sees one; sets torch's threads in this process.

    Args:
        options: From a parser with `add_model_options`.
        masked: Whether attention ignores padding.
    """
    import torch  # noqa: PLC0415 -- processes that only tokenize import this file too

    classifier = Classifier(
        options.size, seed=options.seed, checkpoint=options.checkpoint, grad_mode=options.grad_mode, masked=masked
    )
    # On a GPU torch's own choice stays; on the CPU several workers would fight for the same cores.
    threads = options.threads or (1 if classifier.device == "cpu" else None)
    if threads is not None:
        torch.set_num_threads(threads)
    return classifier


def slowed(slowdown: float, work: Callable[[], T]) -> T:
    """Do some work and make it take longer, by this share of its time."""
    start_ns = time.perf_counter_ns()
    result = work()
    if slowdown:
        end_ns = start_ns + (1 + slowdown) * (time.perf_counter_ns() - start_ns)
        # Slower code keeps its core busy. A sleep would lend it to the other processes and hide the slowdown.
        while time.perf_counter_ns() < end_ns:
            pass
    return result


def positive_integer(text: str) -> int:
    """Read an argument's value; argparse names this function if it is not an integer."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def number_of_zero_or_more(text: str) -> float:
    """Read an argument's finite value."""
    number = float(text)
    if not math.isfinite(number) or number < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 0 or more")
    return number


def existing_folder(text: str) -> Path:
    """Read an argument's value as an existing folder."""
    folder = Path(text)
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"no folder {text}")
    return folder.resolve()
