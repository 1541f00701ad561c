"""Bad words and stop words in FasterTransformer's form: the ids of all words, and the end of each word.

A request with n prompts has an array of shape (n, 2, longest). The first row of a prompt has the ids, one word after
the other, padded with 0. The second row has the ends of the words, padded with -1.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Array: TypeAlias = np.ndarray[Any, Any]

PADDING = -1


def to_arrays(texts: Sequence[str], encode: Callable[[str], list[int]]) -> Array:
    """Make the array of a request.

    Args:
        texts: Words of each prompt, separated by commas; a word with a comma is in quotes. May be empty.
        encode: The tokenizer.

    Returns:
        An array of int32 with at least one column.
    """
    lists = [[ids for word in _words(text) if (ids := encode(word))] for text in texts]
    longest = max([1, *(sum(map(len, words)) for words in lists)])
    array = np.zeros((len(texts), 2, longest), dtype=np.int32)
    array[:, 1] = PADDING
    for row, words in enumerate(lists):
        flat = [token for word in words for token in word]
        array[row, 0, : len(flat)] = flat
        array[row, 1, : len(words)] = np.cumsum([len(word) for word in words], dtype=np.int32)
    return array


def from_array(array: Array) -> tuple[tuple[int, ...], ...]:
    """Read the words of one prompt from its part of the array, of shape (2, longest).

    Raises:
        ValueError: The ends do not rise, or exceed the array.
    """
    ids, ends = array[0].tolist(), [end for end in array[1].tolist() if end != PADDING]
    begins = [0, *ends[:-1]] if ends else []
    if any(not begin < end <= len(ids) for begin, end in zip(begins, ends, strict=True)):
        raise ValueError(f"a word list whose words end at {ends}, of {len(ids)} ids")
    return tuple(tuple(ids[begin:end]) for begin, end in zip(begins, ends, strict=True))


def _words(text: str) -> list[str]:
    return next(csv.reader([text]), [])
