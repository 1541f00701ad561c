"""The right answers, computed in-process by the model that the servers of this suite serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suites.distilbert.apps.distilbert_model import DEFAULT_SEED, Classifier, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def expected_replies(
    bodies: Sequence[bytes], *, size: str, seed: int = DEFAULT_SEED, checkpoint: Path | None = None
) -> list[bytes]:
    """Classify request bodies one at a time, without batching, padding or a server.

    Always on the CPU, because a second process on the GPU would disturb the measurement. The caller has to choose
    bodies whose two logits differ by more than the devices' rounding.

    Args:
        bodies: UTF-8 texts, as posted.
        size: Value of the server's ``--size``.
        seed: Value of its ``--seed``.
        checkpoint: Value of its ``--checkpoint``.

    Returns:
        The exact reply to each body: ``b"POSITIVE"`` or ``b"NEGATIVE"``.
    """
    encode = load_tokenizer(checkpoint)
    classifier = Classifier(size, seed=seed, checkpoint=checkpoint, device="cpu")
    return [classifier.labels([encode(body.decode())])[0].encode() for body in bodies]
