"""Generation of text, token by token, for a batch of prompts with their own sampling.

A prompt's answer does not depend on the others of its batch: each has its own random numbers, drawn from its own seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suites.codegen.apps.gptj import GptJ

Words = tuple[tuple[int, ...], ...]
"""Words as the ids of their tokens."""


@dataclass(frozen=True)
class Prompt:
    """A prompt, and the sampling of its answer. Missing parameters have the defaults of FasterTransformer.

    Args:
        ids: Its tokens; an empty prompt has only ``start_id``.
        output_len: Most tokens to generate.
        top_k: Number of the likeliest tokens that are drawn from; 0 for all, or for one if ``top_p`` is 0 too.
        top_p: Total probability of the likeliest tokens that are drawn from; 0 is 1.
        temperature: Divisor of the logits.
        repetition_penalty: Above 1, makes tokens that occurred before less likely.
        seed: Seed of its random numbers.
        start_id: See ``ids``.
        end_id: Ends the answer.
        bad_words: Words that are not generated.
        stop_words: Words that end the answer, and belong to it.
    """

    ids: tuple[int, ...]
    output_len: int
    top_k: int = 0
    top_p: float = 0.0
    temperature: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0
    start_id: int = 220
    end_id: int = 50_256
    bad_words: Words = ()
    stop_words: Words = ()

    @property
    def begin(self) -> tuple[int, ...]:
        """Tokens before the answer; at least one."""
        return self.ids or (self.start_id,)


@dataclass(frozen=True)
class Answer:
    """Generated answer to a prompt.

    Args:
        ids: The prompt's tokens, and the new ones after them, including ``end_id`` if it was reached.
        log_probs: Natural logarithm of the probability of each new token, with temperature and penalty, among all.
    """

    ids: tuple[int, ...]
    log_probs: tuple[float, ...]


def check_prompt(prompt: Prompt, vocabulary: int, context: int) -> None:
    """Check that a prompt can be answered.

    Args:
        prompt: The prompt.
        vocabulary: Size of the model's vocabulary.
        context: Most tokens of prompt and answer together.

    Raises:
        ValueError: The prompt cannot be answered; the text has the reason.
    """
    if any(not 0 <= token < vocabulary for token in prompt.begin):
        raise ValueError(f"a token of the prompt is not within the model's {vocabulary}")
    if prompt.output_len < 1:
        raise ValueError("request_output_len is below 1")
    if len(prompt.begin) + prompt.output_len > context:
        raise ValueError(f"prompt and answer have {len(prompt.begin) + prompt.output_len} tokens, above {context}")
    if not (0 < prompt.temperature < math.inf and 0 < prompt.repetition_penalty < math.inf):
        raise ValueError("temperature and repetition_penalty are numbers above 0")
    if not 0 <= prompt.top_p <= 1:
        raise ValueError("runtime_top_p is not within 0..1")


@torch.inference_mode()
def generate(model: GptJ, prompts: Sequence[Prompt]) -> list[Answer]:
    """Generate answers to prompts of any lengths in one batch.

    Args:
        model: The network.
        prompts: At least one, valid by ``check_prompt``.
    """
    device = model.lm_head.weight.device
    lengths = torch.tensor([len(prompt.begin) for prompt in prompts], device=device)
    width, steps = int(lengths.max()), max(prompt.output_len for prompt in prompts)
    # Padded at the end; padding is masked in any place.
    ids = torch.zeros((len(prompts), width), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt.begin)] = torch.tensor(prompt.begin)
    ids = ids.to(device)
    places = torch.arange(width, device=device)
    # Mask of all slots: a new token takes the slot after the widest prompt, the same in each row.
    seen = torch.ones((len(prompts), width + steps), dtype=torch.bool, device=device)
    seen[:, :width] = places < lengths[:, None]
    causal = places[None, :] <= places[:, None]
    cache = model.new_cache(len(prompts), width + steps)
    hidden = model(ids, places.expand_as(ids), (causal & seen[:, None, :width])[:, None], cache)
    last = hidden[torch.arange(len(prompts), device=device), lengths - 1]
    draw = _Drawing(prompts, model.shape.vocabulary, device)
    for step in range(steps):
        tokens = draw.next(model.lm_head(last).float())
        if draw.finished or step == steps - 1:
            break
        mask = seen[:, None, None, : width + step + 1]
        # Rows with a complete answer go on until the longest one has ended, and may exceed the context.
        positions = (lengths + step).clamp(max=model.shape.context - 1)
        last = model(tokens[:, None], positions[:, None], mask, cache)[:, 0]
    return draw.answers()


class _Drawing:
    """Chooses the next token of each prompt, until all have their answers."""

    def __init__(self, prompts: Sequence[Prompt], vocabulary: int, device: torch.device) -> None:
        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)[:, None]

        self._prompts = prompts
        self._rows = torch.arange(len(prompts), device=device)
        self._temperatures = column([prompt.temperature for prompt in prompts])
        self._penalties = column([prompt.repetition_penalty for prompt in prompts])
        self._top_p = column([prompt.top_p or 1.0 for prompt in prompts])
        top_k = [min(prompt.top_k or (vocabulary if prompt.top_p else 1), vocabulary) for prompt in prompts]
        self._top_k = torch.tensor(top_k, device=device)[:, None]
        self._ranks = torch.arange(max(top_k), device=device)
        self._used = torch.zeros((len(prompts), vocabulary), dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            self._used[row, list(prompt.begin)] = True
        self._used = self._used.to(device)
        steps = max(prompt.output_len for prompt in prompts)
        self._chances = torch.stack([_chances(prompt.seed, steps) for prompt in prompts]).to(device)
        self._ids = [list(prompt.begin) for prompt in prompts]
        self._log_probs: list[list[float]] = [[] for _ in prompts]
        self._open = set(range(len(prompts)))
        self._step = 0

    @property
    def finished(self) -> bool:
        """Whether every answer has ended."""
        return not self._open

    def next(self, logits: torch.Tensor) -> torch.Tensor:
        """Choose a token for each row by its logits, of shape (rows, vocabulary); return their ids."""
        scores = logits / self._temperatures
        penalised = torch.where(scores > 0, scores / self._penalties, scores * self._penalties)
        scores = torch.where(self._used, penalised, scores)
        for row, token in self._banned():
            scores[row, token] = -math.inf
        log_probs = scores.log_softmax(dim=-1)
        best, tokens = log_probs.topk(len(self._ranks))
        likely = best.exp().masked_fill(self._ranks >= self._top_k, 0.0)
        likely = likely / likely.sum(dim=-1, keepdim=True)
        before = likely.cumsum(dim=-1) - likely
        edges = likely.masked_fill(before >= self._top_p, 0.0).double().cumsum(dim=-1)
        chance = self._chances[:, self._step, None] * edges[:, -1:]
        rank = (edges <= chance).sum(dim=-1).clamp(max=len(self._ranks) - 1)
        chosen = tokens[self._rows, rank]
        self._used[self._rows, chosen] = True
        self._keep(chosen.tolist(), best[self._rows, rank].tolist())
        self._step += 1
        return chosen

    def answers(self) -> list[Answer]:
        """Chosen tokens so far."""
        return [Answer(tuple(ids), tuple(found)) for ids, found in zip(self._ids, self._log_probs, strict=True)]

    def _banned(self) -> list[tuple[int, int]]:
        """Rows and tokens that would complete a bad word."""
        return [
            (row, word[-1])
            for row in self._open
            for word in self._prompts[row].bad_words
            if _ends_with(self._ids[row], word[:-1])
        ]

    def _keep(self, tokens: list[int], log_probs: list[float]) -> None:
        for row in sorted(self._open):
            prompt, ids = self._prompts[row], self._ids[row]
            ids.append(tokens[row])
            self._log_probs[row].append(log_probs[row])
            new = ids[len(prompt.begin) :]
            ended = tokens[row] == prompt.end_id or any(_ends_with(new, word) for word in prompt.stop_words)
            if ended or len(new) == prompt.output_len:
                self._open.remove(row)


def _ends_with(ids: Sequence[int], word: tuple[int, ...]) -> bool:
    return tuple(ids[max(0, len(ids) - len(word)) :]) == word


def _chances(seed: int, steps: int) -> torch.Tensor:
    """Random numbers in [0, 1); those of a seed begin the same for any length."""
    generator = torch.Generator("cpu").manual_seed(seed % 2**63)
    return torch.rand(steps, dtype=torch.float64, generator=generator)
