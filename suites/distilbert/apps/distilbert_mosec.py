"""DistilBERT behind mosec: text in, ``POSITIVE`` or ``NEGATIVE`` out, tokenizing in processes of its own.

Run ``python distilbert_mosec.py --inference-workers 1 --port 8000`` and post plain text to ``/inference``; ``--help``
lists these arguments and mosec's own. ``--slowdown 0.3`` makes every batch take 30 % longer, which turns a gate red.

The published service differs in two ways that do not cost it much. It ran under ``no_grad`` (``--grad-mode no_grad``),
and it passed no attention mask (``--no-attention-mask``). Without a mask a short text attends to its padding, so its
label depends on the rest of its batch. The published measurement used a single sentence, which hides that.

mosec starts its workers by ``spawn``: they import this file anew, as ``__mp_main__``, and inherit ``sys.argv``. The
import of this file therefore does nothing, and each worker reads the command line itself.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from mosec import DecodingError, Server, Worker
from mosec.args import build_arguments_parser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suites.distilbert.apps.distilbert_model import load_tokenizer
    from suites.distilbert.apps.distilbert_options import (
        WARM_UP_ID,
        WARM_UP_TOKENS,
        add_model_options,
        classifier_of,
        positive_integer,
        slowed,
    )
else:
    # A script imports its neighbours by their bare names.
    from distilbert_model import load_tokenizer
    from distilbert_options import (
        WARM_UP_ID,
        WARM_UP_TOKENS,
        add_model_options,
        classifier_of,
        positive_integer,
        slowed,
    )


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line: this app's arguments and mosec's.

    Args:
        arguments: The command line without the program's name.

    Returns:
        The options by name.

    Raises:
        SystemExit: An argument has a wrong value, or is known neither here nor to mosec.
    """
    # mosec ignores unknown arguments, so a misspelt one would run another server than requested. With mosec's own
    # parser as parent the line is read strictly.
    parser = argparse.ArgumentParser(
        description="DistilBERT behind mosec", parents=[build_arguments_parser()], add_help=False, allow_abbrev=False
    )
    add_model_options(parser)
    parser.add_argument("--inference-workers", type=positive_integer, default=1, help="inference processes (default 1)")
    # At least 1, because mosec takes 0 for "not given" and would wait its own default of 10 ms.
    parser.add_argument(
        "--max-wait-ms", type=positive_integer, default=10, help="longest wait for a full batch (default 10)"
    )
    parser.add_argument("--no-attention-mask", action="store_true", help="let texts attend to their padding")
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
        super().__init__()
        options = parse_options(sys.argv[1:])
        self._slowdown: float = options.slowdown
        self._classifier = classifier_of(options, masked=not options.no_attention_mask)
        sequence = [WARM_UP_ID] * WARM_UP_TOKENS
        self._batched: bool = options.max_batch_size > 1
        # mosec sends this through `forward` before the worker takes requests.
        self.example = [sequence] * options.max_batch_size if self._batched else sequence

    def forward(self, data: list[list[int]] | list[int]) -> list[str] | str:
        """Classify a batch, or a single sequence if batching is off."""
        batch = data if self._batched else [data]
        labels = slowed(
            self._slowdown,
            lambda: self._classifier.labels(batch),  # type: ignore[arg-type] # `_batched` says which of the two it is
        )
        return labels if self._batched else labels[0]

    def serialize(self, data: str) -> bytes:
        """Reply with the bare label: 8 bytes, for both labels."""
        return data.encode()


def main() -> None:
    """Serve until the process is ended."""
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


if __name__ == "__main__":
    main()
