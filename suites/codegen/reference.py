"""The right answers, computed in-process by the model that the servers of this suite serve."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from pytest_gpuserve.load.kserve import decode_answer
from suites.codegen.apps.byte_tokenizer import load_tokenizer
from suites.codegen.request import END_ID, HELLO, START_ID

if TYPE_CHECKING:
    from suites.codegen.apps.gptj import GptJ

KNOWN_TOKENS = 8
"""Tokens of a full model's answer that are computed here: on a CPU each takes a tenth of a second."""


@dataclass(frozen=True)
class Expected:
    """The right answer to a prompt.

    Args:
        text: Prompt and answer.
        ids: Their tokens.
        log_probs: Log probability of each new token.
    """

    text: str
    ids: tuple[int, ...]
    log_probs: tuple[float, ...]


@dataclass(frozen=True)
class RightAnswer:
    """Check of an answer's body, of either protocol, for ``expect=``.

    Args:
        text: The text, or its begin.
        tokens: Most tokens of prompt and answer.
        whole: Whether the text is complete, and the number of tokens exact.
    """

    text: str
    tokens: int
    whole: bool

    def __call__(self, body: bytes) -> bool:
        """Compare; AssertionError tells the fault."""
        tensors = decode_answer(body)
        text, tokens = tensors["OUTPUT_0"].item().decode(), int(tensors["sequence_length"].item())
        if self.whole:
            assert (text, tokens) == (self.text, self.tokens)
        else:
            assert text.startswith(self.text), f"{text[:80]!r}, expected to begin with {self.text!r}"
            assert tokens <= self.tokens
        return True


def right_answer(output_len: int, *, size: str) -> RightAnswer:
    """Right answer to the published request for this number of tokens; for the full model its begin."""
    whole = size != "full" or output_len <= KNOWN_TOKENS
    known = expected(output_len=output_len if whole else KNOWN_TOKENS, size=size)
    if whole:
        return RightAnswer(known.text, len(known.ids), whole=True)
    # The last bytes may be the first half of a character.
    return RightAnswer(known.text.rstrip("\ufffd"), len(known.ids) - KNOWN_TOKENS + output_len, whole=False)


def expected(
    prompt: str = HELLO,
    output_len: int = 8,
    *,
    size: str,
    top_k: int = 3,
    top_p: float = 0.92,
    temperature: float = 0.5,
    repetition_penalty: float = 1.1,
    seed: int = 42,
) -> Expected:
    """Generate for one prompt, alone, without a batch or a server; arguments as for ``request_tensors``.

    Always on the CPU and in fp32, because a second process on the GPU would disturb the measurement.
    """
    import torch  # noqa: PLC0415 -- what collects the tests need not have it

    from suites.codegen.apps.generation import Prompt, generate  # noqa: PLC0415 -- as above

    tokenizer = load_tokenizer()
    asked = Prompt(
        tuple(tokenizer.encode(prompt)),
        output_len,
        top_k=top_k,
        # In their form on the wire.
        top_p=torch.tensor(top_p).item(),
        temperature=torch.tensor(temperature).item(),
        repetition_penalty=torch.tensor(repetition_penalty).item(),
        seed=seed,
        start_id=START_ID,
        end_id=END_ID,
    )
    (answer,) = generate(model_of(size), [asked])
    return Expected(tokenizer.decode(list(answer.ids)), answer.ids, answer.log_probs)


@lru_cache(maxsize=1)
def model_of(size: str) -> GptJ:
    """Build the model with its random weights; cached, because the full one takes seconds."""
    from suites.codegen.apps.gptj import build_model  # noqa: PLC0415 -- brings torch

    return build_model(size)
