"""The Temporal Fusion Transformer behind Triton's Python backend; ``config.pbtxt`` names its data set.

Variables configure its service, see ``tft/serving.py``: ``TFT_SIZE=small TFT_PRECISION=fp16 tritonserver ...``.
"""

import json
import os
import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils

# Triton imports this file by its path alone; its package lies beside the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tft.contract import INPUTS, OUTPUT
from tft.serving import Forecaster, read_options


class TritonPythonModel:
    """An instance of the model: a process of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        """Build the network; Triton reports the place of a failure."""
        parameters = json.loads(args["model_config"])["parameters"]
        self._forecaster = Forecaster(read_options(parameters["dataset"]["string_value"], os.environ))

    def execute(self, requests: list["pb_utils.InferenceRequest"]) -> list["pb_utils.InferenceResponse"]:
        """Answer what Triton has put together, as one batch; a bad request gets an error of its own."""
        asked = [
            [pb_utils.get_input_tensor_by_name(request, spec.name).as_numpy() for spec in INPUTS]
            for request in requests
        ]
        problems = [self._forecaster.problem(inputs) for inputs in asked]
        good = [inputs for inputs, problem in zip(asked, problems, strict=True) if not problem]
        forecasts = iter(self._forecaster.forecast(good) if good else ())
        return [
            pb_utils.InferenceResponse(error=pb_utils.TritonError(problem))
            if problem
            else pb_utils.InferenceResponse([pb_utils.Tensor(OUTPUT.name, next(forecasts))])
            for problem in problems
        ]
