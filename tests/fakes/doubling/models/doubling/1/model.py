"""Doubling behind Triton's Python backend."""

import os
import sys

import triton_python_backend_utils as pb_utils

sys.path.append(os.environ["DOUBLING_FOLDER"])
from doubling import work


class TritonPythonModel:
    """Doubles."""

    def execute(self, requests):
        """Answer a batch."""
        work(len(requests))
        answers = []
        for request in requests:
            doubled = 2 * pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", doubled)]))
        return answers
