"""Text to token ids and back, without a download: single bytes, and the pieces of a small vocabulary beside this file.

Ids below 256 are single bytes in the order of GPT-2's vocabulary. There, 220, the ``start_id`` of the published
requests, is the space. Ids from 256 on are the lines of ``vocab.json``. This module imports quickly: the pre- and
postprocessing models start without torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

END_ID = 50_256
"""The end of a text, which has no text itself."""

CHECKPOINT_FILE = "tokenizer.json"
"""File of the real vocabulary in a checkpoint's folder."""

VISIBLE = (range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100))
"""Bytes that are printable characters of Latin-1: GPT-2 numbers these first, and then the rest."""


class Tokenizer(Protocol):
    """Interface of a tokenizer for the models."""

    def encode(self, text: str) -> list[int]:
        """Split a text into token ids."""

    def decode(self, ids: list[int]) -> str:
        """Join the text of token ids; special tokens have no text."""


class ByteTokenizer:
    """The shipped vocabulary: the longest matching piece is taken."""

    def __init__(self) -> None:
        pieces: list[str] = json.loads((Path(__file__).parent / "vocab.json").read_text(encoding="utf-8"))
        first = [byte for part in VISIBLE for byte in part]
        self._pieces = [bytes([byte]) for byte in (*first, *(byte for byte in range(256) if byte not in first))]
        self._pieces += [piece.encode() for piece in pieces]
        self._ids = {piece: token for token, piece in enumerate(self._pieces)}
        self._longest = max(map(len, self._pieces))

    def __len__(self) -> int:
        return len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer``."""
        data, ids, at = text.encode(), [], 0
        while at < len(data):
            ends = range(min(at + self._longest, len(data)), at, -1)
            end = next(end for end in ends if data[at:end] in self._ids)
            ids.append(self._ids[data[at:end]])
            at = end
        return ids

    def decode(self, ids: list[int]) -> str:
        """See ``Tokenizer``.

        A model with random weights of the full size usually generates tokens beyond the vocabulary, which are written
        as their numbers. Invalid UTF-8 becomes a replacement character.
        """
        return b"".join(self._piece(token) for token in ids if token != END_ID).decode(errors="replace")

    def _piece(self, token: int) -> bytes:
        return self._pieces[token] if token < len(self._pieces) else b"<%d>" % token


class CheckpointTokenizer:
    """The vocabulary of a real checkpoint.

    Args:
        folder: Folder of the checkpoint, with ``tokenizer.json``.

    Raises:
        FileNotFoundError: The file is missing.
    """

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer as Fast  # noqa: PLC0415 -- only who has a checkpoint needs it

        if not (folder / CHECKPOINT_FILE).is_file():
            raise FileNotFoundError(f"no vocabulary at {folder / CHECKPOINT_FILE}")
        self._fast = Fast.from_file(str(folder / CHECKPOINT_FILE))

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer``."""
        return list(self._fast.encode(text).ids)

    def decode(self, ids: list[int]) -> str:
        """See ``Tokenizer``."""
        return str(self._fast.decode(ids, skip_special_tokens=True))


def load_tokenizer(checkpoint: Path | None = None) -> Tokenizer:
    """Make the tokenizer of a checkpoint; without one, that of the shipped vocabulary."""
    return ByteTokenizer() if checkpoint is None else CheckpointTokenizer(checkpoint)
