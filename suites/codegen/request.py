"""The published request of 15 tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]

Protocol = Literal["http", "grpc"]
"""Transport of a request."""

HELLO = "def helloworld():"

START_ID, END_ID = 220, 50_256

OPTION_NAMES = (
    "runtime_top_k",
    "runtime_top_p",
    "beam_search_diversity_rate",
    "temperature",
    "len_penalty",
    "repetition_penalty",
    "random_seed",
    "is_return_log_probs",
    "beam_width",
    "start_id",
    "end_id",
)
"""Sampling parameters, which a request may leave out."""

OUTPUTS = ("OUTPUT_0", "sequence_length", "cum_log_probs", "output_log_probs")

PUBLISHED_USERS = {8: 80, 32: 70, 128: 50, 512: 60}
"""Final number of users of each published run, by output length."""

BINARY_BYTES = 78
"""Bytes of the tensors of one published request, without the JSON before them."""

JSON_BYTES = 1443
"""Bytes of tritonclient's JSON for it."""


def request_tensors(
    prompts: Sequence[str] = (HELLO,),
    output_len: int = 8,
    *,
    bad_words: str = "",
    stop_words: str = "",
    top_k: int = 3,
    top_p: float = 0.92,
    temperature: float = 0.5,
    repetition_penalty: float = 1.1,
    seed: int = 42,
    log_probs: bool = True,
    beam_width: int = 1,
) -> dict[str, Array]:
    """Make the inputs of the ensemble, each with one row for each prompt.

    Args:
        prompts: The prompts.
        output_len: Tokens to generate for each.
        bad_words: Words that are not generated, separated by commas.
        stop_words: Words that end an answer, separated by commas.
        top_k: Number of the likeliest tokens that are drawn from.
        top_p: Total probability of the tokens that are drawn from.
        temperature: Divisor of the logits.
        repetition_penalty: Above 1, makes tokens that occurred less likely.
        seed: Seed of the random numbers, the same for each prompt.
        log_probs: Whether log probabilities are returned.
        beam_width: Number of beams; only one is supported.
    """
    import numpy as np  # noqa: PLC0415 -- what collects the tests need not have it

    def column(value: object, data_type: type) -> Array:
        return np.full((len(prompts), 1), value, dtype=data_type)

    return {
        "INPUT_0": np.array([[prompt.encode()] for prompt in prompts], dtype=np.object_),
        "INPUT_1": column(output_len, np.uint32),
        "INPUT_2": column(bad_words.encode(), np.object_),
        "INPUT_3": column(stop_words.encode(), np.object_),
        "runtime_top_k": column(top_k, np.uint32),
        "runtime_top_p": column(top_p, np.float32),
        "beam_search_diversity_rate": column(0.5, np.float32),
        "temperature": column(temperature, np.float32),
        "len_penalty": column(-1.0, np.float32),
        "repetition_penalty": column(repetition_penalty, np.float32),
        "random_seed": column(seed, np.uint64),
        "is_return_log_probs": column(log_probs, np.bool_),
        "beam_width": column(beam_width, np.uint32),
        "start_id": column(START_ID, np.uint32),
        "end_id": column(END_ID, np.uint32),
    }
