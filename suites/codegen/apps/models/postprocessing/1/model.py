"""Token ids to text. Imports no torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

# Triton's Python process searches modules in this folder and in the model's; the apps are above the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from byte_tokenizer import load_tokenizer
from serving import answer_each, checkpoint


class TritonPythonModel:
    """The model ``postprocessing``."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the vocabulary."""
        del args
        self._tokenizer = load_tokenizer(checkpoint())

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request by itself, because a batch would bring no benefit."""
        return answer_each(requests, self._answer, pb_utils)

    def _answer(self, request: Any) -> list[Any]:  # noqa: ANN401 -- Triton's
        batch = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()
        texts = [[[self._tokenizer.decode(ids).encode()] for ids in beams] for beams in batch.tolist()]
        return [pb_utils.Tensor("OUTPUT", np.array(texts, dtype=np.object_))]
