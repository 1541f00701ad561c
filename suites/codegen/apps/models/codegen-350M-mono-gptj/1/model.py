"""Prompts to answers by a model of GPT-J's architecture; all requests of a batch are generated together."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

# Triton's Python process searches modules in this folder and in the model's; the apps are above the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from generation import Answer, Prompt, check_prompt, generate
from gptj import PRECISIONS, SIZES, build_model
from serving import PRECISION, SIZE, checkpoint, chosen, slowdown
from word_lists import from_array

OPTIONS = {
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "temperature": "temperature",
    "repetition_penalty": "repetition_penalty",
    "random_seed": "seed",
    "start_id": "start_id",
    "end_id": "end_id",
}
"""Optional inputs of one value for each prompt, with their fields of ``Prompt``. ``len_penalty`` and
``beam_search_diversity_rate`` are accepted without an effect, because a single beam is generated."""


class TritonPythonModel:
    """The model ``codegen-350M-mono-gptj``."""

    def initialize(self, args: dict[str, str]) -> None:
        """Build the network, on a GPU if present, and run it once."""
        del args
        self._slowdown = slowdown()
        on_gpu = torch.cuda.is_available()
        if not on_gpu:
            # More threads would fight with the other models, Triton and the client for the same cores.
            torch.set_num_threads(1)
        size, precision = chosen(SIZE, tuple(SIZES)), chosen(PRECISION, tuple(PRECISIONS))
        model = build_model(size, checkpoint=checkpoint(), precision=precision)
        self._model = model.to("cuda" if on_gpu else "cpu")
        generate(self._model, [Prompt(ids=(0,), output_len=2)])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Generate for all prompts of all requests at once; an invalid request is answered with an error."""
        begin_ns = time.perf_counter_ns()
        asked: list[list[Prompt] | str] = []
        for request in requests:
            try:
                asked.append(self._prompts(request))
            except ValueError as problem:
                asked.append(str(problem))
        prompts = [prompt for each in asked if not isinstance(each, str) for prompt in each]
        answers = iter(generate(self._model, prompts) if prompts else [])
        responses = []
        for request, each in zip(requests, asked, strict=True):
            if isinstance(each, str):
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(each)))
            else:
                tensors = _tensors(each, [next(answers) for _ in each], _with_log_probs(request))
                responses.append(pb_utils.InferenceResponse(tensors))
        if self._slowdown:
            _spin_until_ns(begin_ns + (1 + self._slowdown) * (time.perf_counter_ns() - begin_ns))
        return responses

    def _prompts(self, request: Any) -> list[Prompt]:  # noqa: ANN401 -- Triton's
        ids = _rows(request, "input_ids")
        lengths, wanted = _values(request, "input_lengths"), _values(request, "request_output_len")
        options = {name: _values(request, tensor) for tensor, name in OPTIONS.items() if _has(request, tensor)}
        if any(width > 1 for width in (_values(request, "beam_width") if _has(request, "beam_width") else [])):
            raise ValueError("beam_width above 1 is not served: answers are drawn, not searched for")
        words = {
            name: [from_array(row) for row in _rows(request, f"{name}_list")]
            for name in ("bad_words", "stop_words")
            if _has(request, f"{name}_list")
        }
        prompts = [
            Prompt(
                ids=tuple(row[: lengths[number]].tolist()),
                output_len=wanted[number],
                **{name: values[number] for name, values in {**options, **words}.items()},
            )
            for number, row in enumerate(ids)
        ]
        shape = self._model.shape
        for prompt in prompts:
            check_prompt(prompt, shape.vocabulary, shape.context)
        return prompts


def _rows(request: Any, name: str) -> Any:  # noqa: ANN401 -- Triton's request; an array
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def _has(request: Any, name: str) -> bool:  # noqa: ANN401 -- Triton's
    return pb_utils.get_input_tensor_by_name(request, name) is not None


def _values(request: Any, name: str) -> list[Any]:  # noqa: ANN401 -- Triton's request; numbers of any type
    rows = _rows(request, name)
    if rows.shape[1:] != (1,):
        raise ValueError(f"{name} has the shape {list(rows.shape)}, but needs one value for each prompt")
    return rows[:, 0].tolist()


def _with_log_probs(request: Any) -> list[bool]:  # noqa: ANN401 -- Triton's
    name = "is_return_log_probs"
    return _values(request, name) if _has(request, name) else [False] * len(_rows(request, "input_ids"))


def _tensors(prompts: list[Prompt], answers: list[Answer], with_log_probs: list[bool]) -> list[Any]:
    """Make the outputs of a request; their second dimension is the beam, always a single one.

    Log probabilities that were not requested, and those after an answer's end, are NaN.
    """
    longest = max(len(answer.ids) for answer in answers)
    ids = np.array([[prompt.end_id] * longest for prompt in prompts], dtype=np.uint32)
    log_probs = np.full((len(answers), max(len(answer.log_probs) for answer in answers)), np.nan, dtype=np.float32)
    sums = np.full(len(answers), np.nan, dtype=np.float32)
    for row, answer in enumerate(answers):
        ids[row, : len(answer.ids)] = answer.ids
        if with_log_probs[row]:
            log_probs[row, : len(answer.log_probs)] = answer.log_probs
            sums[row] = sum(answer.log_probs)
    lengths = np.array([len(answer.ids) for answer in answers], dtype=np.uint32)
    return [
        pb_utils.Tensor("output_ids", ids[:, None]),
        pb_utils.Tensor("sequence_length", lengths[:, None]),
        pb_utils.Tensor("cum_log_probs", sums[:, None]),
        pb_utils.Tensor("output_log_probs", log_probs[:, None]),
    ]


def _spin_until_ns(end_ns: float) -> None:
    # Slower code keeps its core busy. A sleep would lend it to the other processes and hide the slowdown.
    while time.perf_counter_ns() < end_ns:
        pass
