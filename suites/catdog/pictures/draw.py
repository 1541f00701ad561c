"""Draws the pictures beside this file: ``python draw.py``. It is run by hand; the suite sends the files.

Another version of Pillow may compress them to other bytes, which would be another workload.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

COUNT = 4

SIZE = (274, 275)
"""Width and height of the published picture."""

BYTES = 10_560
"""Length of the published JPEG."""

FRAME = 4
"""Bytes of an empty comment in a JPEG."""

START = 2
"""Bytes before the first possible place of a comment."""


def draw(number: int) -> Image.Image:
    """Draw a face with ears before clouds; each number gives another one."""
    random = np.random.default_rng(number)
    clouds = random.integers(0, 256, (12, 12, 3)).astype(np.uint8)
    picture = Image.fromarray(clouds).resize(SIZE, Image.Resampling.BICUBIC)
    pencil = ImageDraw.Draw(picture)
    fur, eyes = (tuple(int(value) for value in random.integers(0, 256, 3)) for _ in range(2))
    x, y = (int(value) for value in random.integers(110, 165, 2))
    wide, high, ear = (int(value) for value in random.integers(45, 85, 3))
    for side in (-1, 1):
        pencil.polygon([(x, y), (x + side * wide, y), (x + side * wide, y - high // 2 - ear)], fill=fur)
    pencil.ellipse((x - wide, y - high, x + wide, y + high), fill=fur)
    for side in (-1, 1):
        pencil.ellipse((x + side * wide // 2 - 9, y - 25, x + side * wide // 2 + 9, y - 5), fill=eyes)
    noise = random.normal(0, 6, (SIZE[1], SIZE[0], 1))
    return Image.fromarray(np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8))


def to_jpeg(picture: Image.Image, length: int) -> bytes:
    """Compress a picture as well as the length allows, and pad it with a comment.

    Raises:
        ValueError: The picture cannot be compressed that far.
    """
    for quality in range(95, 5, -1):
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=quality)
        data = buffer.getvalue()
        room = length - len(data) - FRAME
        if room >= 0:
            comment = b"\xff\xfe" + (room + 2).to_bytes(2, "big") + b" " * room
            return data[:START] + comment + data[START:]
    raise ValueError(f"no JPEG of {length} bytes")


if __name__ == "__main__":
    for number in range(COUNT):
        (Path(__file__).parent / f"{number}.jpg").write_bytes(to_jpeg(draw(number), BYTES))
