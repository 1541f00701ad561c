"""Whether two builds of a language model's server answer alike: both are asked the same, once, outside of the load."""

from __future__ import annotations

import hashlib
import json
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.experiment.asking import ANSWER_SECONDS, ask_once
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.load.validity import one_line
from pytest_gpuserve.measure.rounds import ARMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.load.request import SameAnswers
    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.servers.instance import Instance

ASKED: Final = 8
"""Requests of a load that both servers are asked: the first ones."""

_SHOWN: Final = 60
"""Characters of each answer that are shown from where they part on."""


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    function: _Function = _Function()


class _Message(msgspec.Struct):
    """What is said, whole or a piece of it."""

    reasoning_content: str | None = None
    reasoning: str | None = None
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None

    @property
    def text(self) -> str:
        called = (part for call in self.tool_calls or () for part in (call.function.name, call.function.arguments))
        return "".join(
            part or "" for part in (self.reasoning_content, self.reasoning, self.content, self.refusal, *called)
        )


class _Choice(msgspec.Struct):
    delta: _Message | None = None
    message: _Message | None = None
    text: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []


_read_answer: Final = msgspec.json.Decoder(_Answer).decode


def answer_text(body: bytes) -> str:
    """Return what a chat or a completion says, streamed or not: reasoning, content and the functions that it calls.

    Raises:
        ValueError: It is none.
    """
    events = [line.removeprefix(b"data:").strip() for line in body.splitlines() if line.startswith(b"data:")]
    try:
        choices = [choice for part in events or [body] if part != b"[DONE]" for choice in _read_answer(part).choices]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as problem:
        raise ValueError(f"an answer is none of OpenAI's API: {problem}") from None
    if not choices:
        raise ValueError("an answer has no choices, as one of OpenAI's API has")
    said = ((choice.text, choice.delta or choice.message) for choice in choices)
    return "".join((text or "") + ("" if message is None else message.text) for text, message in said)


class AnswerComparison:
    """Asks each of two servers once, and compares their answers.

    Args:
        rule: What they have to be; nobody is asked where they need not be anything.

    Attributes:
        reasons: What is wrong with them.
    """

    def __init__(self, rule: SameAnswers) -> None:
        self._rule = rule
        self._answers: dict[Arm, list[str]] = {}
        self.reasons: list[Reason] = []

    def ask(self, arm: Arm, target: Target, instance: Instance) -> list[Reason]:
        """Ask a server that runs, unless it was; what is wrong with its answers, once both were asked."""
        if not self._rule or arm in self._answers:
            return []
        self._answers[arm], found = asked(target, instance)
        if not found and len(self._answers) == len(ARMS):
            unlike = unlike_answers(self._answers["base"], self._answers["candidate"], self._rule)
            found = [reason.with_text(instance.shown(reason.text, target.requests[0].headers)) for reason in unlike]
        self.reasons += found
        return found


def asked(target: Target, instance: Instance) -> tuple[list[str], list[Reason]]:
    """Ask a running server the first requests of a load, one after the other; their answers, or why there are none."""
    endpoint, sent = target.endpoint(instance), zip(target.requests, target.payloads(instance), strict=True)
    try:
        return [
            answer_text(ask_once(instance, endpoint, request, payload, ANSWER_SECONDS).body)
            for request, (payload, *_) in islice(sent, ASKED)
        ], []
    except (GpuserveError, ValueError) as problem:
        text = f"the answers could not be compared: {one_line(str(problem))}"
        return [], [Reason(ReasonKind.REQUEST_ERRORS, text)]


def _are_alike(pair: tuple[str, str], rule: SameAnswers) -> bool:
    if not callable(rule):
        return pair[0] == pair[1]
    try:
        return bool(rule(*pair))
    except Exception:  # noqa: BLE001 -- the rule is the user's code: whatever it raises is its "no"
        return False


def unlike_answers(base: Sequence[str], candidate: Sequence[str], rule: SameAnswers) -> list[Reason]:
    """Tell how many answers are not alike, and show the first; empty if all are.

    Args:
        base: Answers, in the order of the prompts.
        candidate: The other server's.
        rule: What they have to be.
    """
    pairs = list(zip(base, candidate, strict=False))
    unlike = [number for number, pair in enumerate(pairs) if not _are_alike(pair, rule)]
    if not unlike:
        return []
    texts = pairs[unlike[0]]
    common = next((at for at, each in enumerate(zip(*texts, strict=False)) if each[0] != each[1]), min(map(len, texts)))
    theirs, ours = (repr(text[common : common + _SHOWN]) for text in texts)
    return [
        Reason(
            ReasonKind.WRONG_ANSWERS,
            f"unlike answers: those to {len(unlike)} of {len(pairs)} prompts; the first is that to prompt {unlike[0]},"
            f" where from character {common} on the candidate says {ours}, the base {theirs}",
        )
    ]


def digests_of(target: Target, instance: Instance, known: tuple[str, ...]) -> tuple[tuple[str, ...], list[Reason]]:
    """Ask a running server for what a baseline keeps of its answers, or say why there is nothing.

    Args:
        target: What is sent; nothing where its answers need not be those of another server.
        instance: The server.
        known: What another start of it has said: then nobody is asked.
    """
    if known or not target.same_answers:
        return known, []
    answers, problems = asked(target, instance)
    return tuple(hashlib.sha256(json.dumps(answer).encode()).hexdigest()[:16] for answer in answers), problems


def unlike_recorded(recorded: Sequence[Session], now: Iterable[Session]) -> Reason | None:
    """Tell that answers are not those that a baseline was recorded with; None where they are.

    How they differ is not known then: a rule of one's own is asked only where both servers run.

    Args:
        recorded: Its sessions, those last whose answers count most.
        now: Those that are judged by it.
    """
    known = next((session.said for session in reversed(recorded) if session.said), ())
    unlike = next((session.said for session in now if session.said != known), None)
    if unlike is None:
        return None
    number = next((at for at, pair in enumerate(zip(known, unlike, strict=False)) if pair[0] != pair[1]), len(unlike))
    return Reason(
        ReasonKind.WRONG_ANSWERS,
        f"unlike answers: that to prompt {number} is not the one that the baseline was recorded with; what differs is"
        " shown side by side: --against=COMMIT",
    )
