"""Generating text token by token for a batch of prompts, each sampled in its own way.

What a prompt gets does not depend on the others of its batch: each has its own random numbers, drawn from its own seed.
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
    """A prompt, and how its answer is chosen. What a request leaves out has the default of FasterTransformer.

    Args:
        ids: Its tokens; of an empty prompt there is ``start_id`` alone.
        output_len: Tokens to generate, at most.
        top_k: Only so many of the likeliest tokens are drawn from; 0: of all, or with ``top_p`` 0 too, of one.
        top_p: Only the likeliest ones that together have this probability; 0 is 1.
        temperature: What the logits are divided by.
        repetition_penalty: Makes tokens that occurred before less likely, where it is above 1.
        seed: Of the random numbers that it is drawn with.
        start_id: See ``ids``.
        end_id: Ends the answer.
        bad_words: Are not generated.
        stop_words: End the answer, of which they are a part.
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
        """The tokens that the answer follows; one at least."""
        return self.ids or (self.start_id,)


@dataclass(frozen=True)
class Answer:
    """What was generated for a prompt.

    Args:
        ids: The prompt's tokens, and the new ones after them, ``end_id`` included where it was reached.
        log_probs: Natural logarithm of the probability of each new token, with temperature and penalty, among all.
    """

    ids: tuple[int, ...]
    log_probs: tuple[float, ...]


def check_prompt(prompt: Prompt, vocabulary: int, context: int) -> None:
    """See that a prompt can be answered.

    Args:
        prompt: The prompt.
        vocabulary: Tokens that the model knows.
        context: Most tokens of prompt and answer together.

    Raises:
        ValueError: It cannot; says why.
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
        prompts: One at least, which ``check_prompt`` found good.
    """
    device = model.lm_head.weight.device
    lengths = torch.tensor([len(prompt.begin) for prompt in prompts], device=device)
    width, steps = int(lengths.max()), max(prompt.output_len for prompt in prompts)
    # Padded at the end, as they came; padding is masked, wherever it is.
    ids = torch.zeros((len(prompts), width), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt.begin)] = torch.tensor(prompt.begin)
    ids = ids.to(device)
    places = torch.arange(width, device=device)
    # Of all slots: a new token takes the one after the widest prompt, in each row the same.
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
        # Rows that have their answer go on until the longest has, where they may be beyond the context.
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
        """Whether every answer has come to its end."""
        return not self._open

    def next(self, logits: torch.Tensor) -> torch.Tensor:
        """Choose a token of each row by its logits, of shape (rows, vocabulary); returns their ids."""
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
        """What was chosen so far."""
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
    """Random numbers in [0, 1); the first ones of a seed are the same, however many are drawn."""
    generator = torch.Generator("cpu").manual_seed(seed % 2**63)
    return torch.rand(steps, dtype=torch.float64, generator=generator)
