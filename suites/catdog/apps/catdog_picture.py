"""From the bytes of a picture to the tensor that the network takes, by Pillow and numpy.

The steps are timm's defaults for ImageNet models. The shorter edge is scaled to 8/7 of the resolution (256 for 224)
with bicubic interpolation. The square in the middle is kept, and values are normalised by ImageNet's mean and standard
deviation.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    import numpy.typing as npt

MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
"""Mean of ImageNet's training pictures, by channel, with values from 0 to 1."""

DEVIATION = np.array([0.229, 0.224, 0.225], dtype=np.float32)
"""Standard deviation, likewise."""


def to_pixels(data: bytes, resolution: int) -> npt.NDArray[np.float32]:
    """Decode a picture of any size and scale, crop and normalise it.

    Args:
        data: A file that Pillow reads, such as a JPEG.
        resolution: Height and width of the result in pixels.

    Returns:
        An array of shape (3, resolution, resolution).

    Raises:
        OSError: The data is not a picture, a part is missing, or it is larger than Pillow trusts.
    """
    try:
        with Image.open(io.BytesIO(data)) as picture:
            colours = picture.convert("RGB")
    except (SyntaxError, ValueError, Image.DecompressionBombError) as problem:
        # Pillow's readers of single formats raise arbitrary errors.
        raise OSError(str(problem)) from problem
    shorter = resolution * 8 // 7
    width, height = (shorter * side // min(colours.size) for side in colours.size)
    scaled = colours.resize((width, height), Image.Resampling.BICUBIC)
    left, top = round((width - resolution) / 2), round((height - resolution) / 2)
    square = scaled.crop((left, top, left + resolution, top + resolution))
    values = np.asarray(square, dtype=np.float32) / np.float32(255)
    return np.ascontiguousarray(((values - MEAN) / DEVIATION).transpose(2, 0, 1))
