"""Options of this deployment: sizes of the model, precisions, labels. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

LABELS = ("Cats", "Dogs")
"""Index of a logit to the label."""

DEFAULT_SEED = 1
"""Seed of the random weights; it gives both labels over the pictures beside the suite, in every size."""


@dataclass(frozen=True)
class Size:
    """Dimensions of one model and of its input.

    Args:
        depths: Blocks of each stage.
        widths: Channels of each stage.
        resolution: Height and width of the input in pixels, a multiple of 32.
    """

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    resolution: int


SIZES = {
    # Liu and others, "A ConvNet for the 2020s" (2022), section 3: 27 821 666 parameters with two labels, 4.4548 GMAC.
    "tiny": Size(depths=(3, 3, 9, 3), widths=(96, 192, 384, 768), resolution=224),
    # The same architecture for a CPU: a batch of 8 takes some 10 ms on one core.
    "small": Size(depths=(1, 1, 2, 1), widths=(24, 48, 96, 192), resolution=64),
}
"""Model sizes by the name that ``--size`` takes."""

PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""torch's name of the type of weights and activations, by the name that ``--precision`` takes."""

FIRST_WITH_BF16 = (8, 0)
"""Lowest compute capability of a GPU with units for bf16; below it torch converts to fp32 and back."""
