"""Prompts for servers of language models: made from a seed, without a network."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import UsageProblem, import_extra
from pytest_gpuserve.load.request import NUMBER_PLACE
from pytest_gpuserve.load.schedule import check_whole

if TYPE_CHECKING:
    from collections.abc import Callable

_ROLES: Final = ("user", "assistant")
"""Roles, in alternation."""

LEAST_INPUT: Final = 16
"""Tokens of the shortest input: its number has up to ten, in a vocabulary with a token for each digit."""

MOST: Final = 1_000_000
"""Largest number of prompts, and of tokens of one; a larger one is a mistake."""

_NUMBER_TOKENS: Final = 4
_A_NUMBER: Final = "4827306915"
"""Tokens of a number in many vocabularies, which have a token for three digits; and a number for counting its
tokens."""

_COMMON: Final = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which"
    " one you were all her she there would their we him been has when who will no more if out so up said what its about"
    " than into them can only other time new some could these two may first then do any like my now over such our man"
    " me even most made after also did many off before must well back through years much where your way down should"
    " because long each just those people too little state good very make world still own see work men day under never"
    " know might against number place right come around however last house high use small every part once great school"
    " group light open water white table power point line order field study early level force land later money local"
    " plan read road room short side story street thing third think total turn value view voice week word write year"
)

WORDS: Final = tuple(dict.fromkeys(_COMMON.split()))
"""Words that are one token in most vocabularies."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform distribution from ``lowest`` to ``highest``, of tokens (then whole numbers) or seconds.

    Raises:
        UsageProblem: The values are not numbers above 0 in this order.
    """

    lowest: float
    highest: float

    def __post_init__(self) -> None:
        if not ({type(self.lowest), type(self.highest)} <= {int, float} and 0 < self.lowest <= self.highest <= MOST):
            raise UsageProblem(
                f"Uniform({self.lowest!r}, {self.highest!r}): give two numbers above 0, to {MOST}, the lower one first",
                remedies=["Uniform(64, 256)"],
            )


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normal distribution of tokens or seconds with this mean and standard deviation; tokens are rounded.

    Raises:
        UsageProblem: The values are not numbers above 0.
    """

    mean: float
    sd: float

    def __post_init__(self) -> None:
        for value in (self.mean, self.sd):
            if type(value) not in {int, float} or not 0 < value <= MOST:
                raise UsageProblem(
                    f"LogNormal({self.mean!r}, {self.sd!r}): mean and standard deviation must be numbers above 0",
                    remedies=["LogNormal(mean=200, sd=150)"],
                )


Length = int | Uniform | LogNormal
"""Length in tokens: a number, or its distribution."""

Pause = float | Uniform | LogNormal
"""Think time of a user in seconds: a number, or its distribution."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Prompt of one request.

    Args:
        text: The prompt's own part of its input.
        output_tokens: Most tokens of the answer.
        before: Earlier messages of its conversation: prompts and answers in alternation.
        pause: Seconds since the previous answer; None for the first prompt of a conversation.
    """

    text: str
    output_tokens: int
    before: tuple[str, ...] = ()
    pause: float | None = None


@dataclass(frozen=True)
class Prompts:
    """Prompts that are sent in turn; if their lengths differ, in an order by the seed of the load.

    In a fixed order, a slower server would reach only earlier prompts in the same time, and answer other prompts.

    An engine with a prefix cache would answer the second window from it. So each send has its own number of ten digits,
    between the common begin and the text.

    Args:
        each: At least one prompt; the turns of a conversation follow each other.
        shared_prefix: Common begin of all prompts; may be empty.
    """

    each: tuple[Prompt, ...] = field(repr=False)
    shared_prefix: str = field(default="", repr=False)

    @property
    def are_alike(self) -> bool:
        """Whether all have the same number of words and the same limit of tokens."""
        return len({(len(each.text.split()), each.output_tokens) for each in self.each}) == 1

    @property
    def numbered_prefix(self) -> str:
        """The begin of every input, up to the end of the number's place."""
        return f"{self.shared_prefix} {NUMBER_PLACE.decode()}" if self.shared_prefix else NUMBER_PLACE.decode()

    @property
    def pauses(self) -> tuple[float | None, ...]:
        """The pause before each prompt; empty without conversations."""
        pauses = tuple(each.pause for each in self.each)
        return () if all(pause is None for pause in pauses) else pauses

    def messages(self, prompt: Prompt) -> list[dict[str, object]]:
        """The whole input of a prompt as messages of a chat."""
        said = (*prompt.before, prompt.text)
        texts = (f"{self.numbered_prefix} {said[0]}", *said[1:])
        return [{"role": role, "content": text} for role, text in zip(cycle(_ROLES), texts, strict=False)]

    def text(self, prompt: Prompt) -> str:
        """The whole input of a prompt as a text.

        Raises:
            UsageProblem: The prompt continues a conversation.
        """
        if prompt.before:
            raise UsageProblem(
                "turns of a conversation are the messages of a chat, not one text",
                remedies=["server.chat(...)", "leave out turns=..."],
            )
        return f"{self.numbered_prefix} {prompt.text}"


def prompts(
    n: int,
    *,
    input_tokens: Length = 128,
    output_tokens: Length = 128,
    shared_prefix: int = 0,
    turns: int = 1,
    think: Pause = 0.0,
    seed: int = 0,
    tokenizer: str | Path | None = None,
) -> Prompts:
    """Make prompts of random words; equal arguments make equal prompts.

    Each prompt contains a number, so that no two sends are equal. Without a tokenizer a word counts as one token, the
    number as four. The tokens of the chat template are additional.

    Args:
        n: Number of prompts or conversations. They are sent in rotation; if lengths differ, in a random order.
        input_tokens: Tokens of a prompt without the shared prefix, at least 16: a number, or its distribution.
        output_tokens: Most tokens of an answer: a number, or its distribution.
        shared_prefix: Additional tokens at the start, which all prompts share.
        turns: Prompts of a conversation. Each is sent with all earlier ones, and with answers of random words, which
            have the requested number of tokens.
        think: Seconds between an answer and the next prompt of its conversation: a number, or its distribution.
        seed: Seed of lengths, words and seconds.
        tokenizer: The model's ``tokenizer.json``, or its folder, for counting tokens.

    Raises:
        UsageProblem: A number is out of range, or the tokenizer cannot be used.
    """
    check_whole("prompts(n)", n, 1, MOST)
    check_whole("prompts(shared_prefix=...)", shared_prefix, 0, MOST)
    check_whole("prompts(turns=...)", turns, 1, MOST)
    check_whole("prompts(seed=...)", seed, 0, MOST)
    _check_pause("prompts(think=...)", think)
    source = random.Random(seed)  # noqa: S311 -- reproducible, not secret
    count = None if tokenizer is None else _counter(tokenizer)
    costs = dict.fromkeys(WORDS, 1) if count is None else _costs(count)
    number = _NUMBER_TOKENS if count is None else count(_A_NUMBER)
    prefix = _words(shared_prefix, costs, source)
    each = []
    for _ in range(n):
        before: tuple[str, ...] = ()
        for turn in range(turns):
            length = _drawn("prompts(input_tokens=...)", input_tokens, source, LEAST_INPUT)
            text = _words(length if before else length - number, costs, source)
            tokens = _drawn("prompts(output_tokens=...)", output_tokens, source)
            each.append(Prompt(text, tokens, before, _pause(think, source) if before else None))
            if turn + 1 < turns:
                before = (*before, text, _words(tokens, costs, source))
    return Prompts(tuple(each), prefix)


def _counter(tokenizer: str | Path) -> Callable[[str], int]:
    """Counter of the tokens of a text."""
    if not isinstance(tokenizer, (str, Path)):
        raise UsageProblem(
            f"tokenizer=... must be the path of a tokenizer.json, or of its folder, not {tokenizer!r}",
            remedies=['tokenizer="models/qwen"', "leave it out to count words"],
        )
    path = Path(tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    tokenizers = import_extra("tokenizers", "prompts(tokenizer=...)", "tokenizers")
    try:
        read = tokenizers.Tokenizer.from_file(str(path))
    except Exception as problem:  # noqa: BLE001 -- the library raises nothing more special
        raise UsageProblem(
            f"tokenizer={str(path)!r} cannot be used",
            found=str(problem),
            remedies=["name the model's tokenizer.json, or the folder with it"],
        ) from None

    def count(text: str) -> int:
        return len(read.encode(text, add_special_tokens=False).ids)

    return count


def _costs(count: Callable[[str], int]) -> dict[str, int]:
    """Tokens that each word adds to a text."""
    return {word: max(1, count(f"the {word}") - count("the")) for word in WORDS}


def _words(tokens: int, costs: dict[str, int], source: random.Random) -> str:
    """Words with this number of tokens, or a few less if none fits exactly."""
    dearest = max(costs.values())
    words = []
    while tokens > 0:
        fitting = WORDS if tokens >= dearest else [word for word in WORDS if costs[word] <= tokens]
        if not fitting:
            break
        words.append(source.choice(fitting))
        tokens -= costs[words[-1]]
    return " ".join(words)


def _drawn(what: str, length: Length, source: random.Random, least: int = 1) -> int:
    """A length of at least ``least``."""
    if isinstance(length, LogNormal):
        return min(MOST, max(least, round(_log_normal(length, source))))
    lowest, highest = (length.lowest, length.highest) if isinstance(length, Uniform) else (length, length)
    check_whole(what, lowest, least, MOST)
    check_whole(what, highest, least, MOST)
    return source.randint(int(lowest), int(highest))


def _pause(think: Pause, source: random.Random) -> float:
    if isinstance(think, LogNormal):
        return min(float(MOST), _log_normal(think, source))
    return source.uniform(think.lowest, think.highest) if isinstance(think, Uniform) else float(think)


def _log_normal(values: LogNormal, source: random.Random) -> float:
    # Variance and mean of ln(x), from those of x.
    variance = math.log1p((values.sd / values.mean) ** 2)
    return source.lognormvariate(math.log(values.mean) - variance / 2, math.sqrt(variance))


def _check_pause(what: str, think: object) -> None:
    if not isinstance(think, (Uniform, LogNormal)) and (type(think) not in {int, float} or not 0 <= think <= MOST):  # type: ignore[operator]  # as just found
        raise UsageProblem(
            f"{what} must be a number of seconds of at least 0, or its distribution, not {think!r}",
            remedies=["think=2.0", "think=LogNormal(mean=5, sd=5)"],
        )
