"""Text to token ids: prompts, bad words and stop words. Imports no torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

# Triton's Python process searches modules in this folder and in the model's; the apps are above the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from byte_tokenizer import END_ID, load_tokenizer
from serving import answer_each, checkpoint
from word_lists import to_arrays


class TritonPythonModel:
    """The model ``preprocessing``."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the vocabulary."""
        del args
        self._tokenizer = load_tokenizer(checkpoint())

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request by itself, because a batch would bring no benefit."""
        return answer_each(requests, self._answer, pb_utils)

    def _answer(self, request: Any) -> list[Any]:  # noqa: ANN401 -- Triton's
        prompts = [self._tokenizer.encode(text) for text in _texts(request, "QUERY")]
        longest = max([1, *map(len, prompts)])
        # Padded with the end of text, as FasterTransformer's own tokenizer does; the lengths tell where it begins.
        ids = np.full((len(prompts), longest), END_ID, dtype=np.uint32)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = prompt
        wanted = pb_utils.get_input_tensor_by_name(request, "REQUEST_OUTPUT_LEN").as_numpy()
        encode = self._tokenizer.encode
        return [
            pb_utils.Tensor("INPUT_ID", ids),
            pb_utils.Tensor("REQUEST_INPUT_LEN", np.array([[len(prompt)] for prompt in prompts], dtype=np.uint32)),
            pb_utils.Tensor("REQUEST_OUTPUT_LEN", wanted.astype(np.uint32)),
            pb_utils.Tensor("BAD_WORDS_IDS", to_arrays(_texts(request, "BAD_WORDS_DICT"), encode)),
            pb_utils.Tensor("STOP_WORDS_IDS", to_arrays(_texts(request, "STOP_WORDS_DICT"), encode)),
        ]


def _texts(request: Any, name: str) -> list[str]:  # noqa: ANN401 -- Triton's
    rows = pb_utils.get_input_tensor_by_name(request, name).as_numpy()
    if rows.shape[1:] != (1,):
        raise ValueError(f"{name} has the shape {list(rows.shape)}, but needs one text for each prompt")
    try:
        return [text.decode() for text in rows[:, 0].tolist()]
    except UnicodeDecodeError:
        raise ValueError(f"{name} is no UTF-8") from None
