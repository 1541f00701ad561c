"""DistilBERT behind pytriton: a text as BYTES ``messages`` in, its label as BYTES ``labels`` out.

Run ``python distilbert_pytriton.py`` and post KServe v2 requests to ``/v2/models/distilbert/infer`` (port 8000);
``--help`` lists the arguments. Its default settings are those of mosec's service in this folder, so that the two can be
compared. Faults of the published service:

- ``--max-queue-delay-us 10``: the unit is *micro*seconds. The published text says 10 ms for both servers, and the 10
  was copied. So Triton hardly waited for a full batch, but mosec did.
- ``--grad-mode enable_grad``: autograd stayed on, so each batch built a graph for a backward pass that never came, and
  held all activations while it ran.
- ``--no-warm-up``: the first requests paid for torch's lazy initialisation; mosec's service had a warm-up example.
- It returned labels of shape (items,) although it had declared (1,), which is (items, 1) with batching. Newer pytriton
  checks that. Its ``@batch`` function decoded all texts of a batch together, so that one with invalid UTF-8 failed all.

Two differences remain. This service tokenizes within the inference process, under the lock of the interpreter that
moves the tensors. Its requests are KServe's (222 bytes instead of 43 for the same sentence).
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from suites.distilbert.apps.distilbert_model import load_tokenizer
    from suites.distilbert.apps.distilbert_options import (
        WARM_UP_ID,
        WARM_UP_TOKENS,
        add_model_options,
        classifier_of,
        slowed,
    )

    Array = np.ndarray[Any, Any]
    Infer = Callable[..., dict[str, Array]]
else:
    # A script imports its neighbours by their bare names.
    from distilbert_model import load_tokenizer
    from distilbert_options import WARM_UP_ID, WARM_UP_TOKENS, add_model_options, classifier_of, slowed

MODEL = "distilbert"


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line.

    Args:
        arguments: The command line without the program's name.

    Returns:
        The options by name.

    Raises:
        SystemExit: An argument is unknown or has a wrong value.
    """
    parser = argparse.ArgumentParser(description="DistilBERT behind pytriton", allow_abbrev=False)
    add_model_options(parser)
    parser.add_argument(
        "--max-queue-delay-us",
        type=whole_number,
        default=10_000,
        help="longest wait for a full batch in microseconds (default 10000, that is 10 ms)",
    )
    parser.add_argument("--no-warm-up", action="store_true", help="let the first requests pay for lazy initialisation")
    return parser.parse_args(arguments)


def make_infer(options: argparse.Namespace) -> Infer:
    """Load the model and make the function that answers a batch.

    Args:
        options: From ``parse_options``.

    Returns:
        A function for pytriton to bind.
    """
    encode = load_tokenizer(options.checkpoint)
    classifier = classifier_of(options)
    if not options.no_warm_up:
        classifier.labels([[WARM_UP_ID] * WARM_UP_TOKENS] * options.max_batch_size)

    def labels_of(messages: Array) -> list[str]:
        # Not strictly, because an exception here would fail all requests, not only the one with invalid UTF-8.
        return classifier.labels([encode(message.decode(errors="replace")) for message in messages[:, 0]])

    def infer(messages: Array) -> dict[str, Array]:
        labels = slowed(options.slowdown, lambda: labels_of(messages))
        return {"labels": np.array([[label.encode()] for label in labels])}

    batched: Infer = batch(infer)
    return batched


def main() -> None:
    """Serve until the process is ended."""
    options = parse_options(sys.argv[1:])
    infer = make_infer(options)
    with Triton(config=TritonConfig(exit_on_error=True)) as triton:
        triton.bind(
            model_name=MODEL,
            infer_func=infer,
            inputs=[Tensor(name="messages", dtype=np.bytes_, shape=(1,))],
            outputs=[Tensor(name="labels", dtype=np.bytes_, shape=(1,))],
            config=ModelConfig(
                max_batch_size=options.max_batch_size,
                batcher=DynamicBatcher(max_queue_delay_microseconds=options.max_queue_delay_us),
            ),
        )
        triton.serve()


def whole_number(text: str) -> int:
    """Read an argument's value; argparse names this function if it is not an integer."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return number


if __name__ == "__main__":
    main()
