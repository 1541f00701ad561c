"""Whether two builds of a language model's server answer alike: both are asked the same, once, outside of the load."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.experiment.asking import ANSWER_SECONDS, ask_once
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.load.validity import one_line
from pytest_gpuserve.measure.rounds import ARMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.load.request import SameAnswers
    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.servers.instance import Instance

ASKED: Final = 8
"""Requests of a load that both servers are asked: the first ones."""

_SHOWN: Final = 60
"""Characters of each answer that are shown from where they part on."""


_BOM: Final = b"\xef\xbb\xbf"


def _written(value: Any) -> str:  # noqa: ANN401 -- a field that is unlike the API's own is said all the same
    """A field as text; nothing where the load engine counts no content."""
    if not value:
        return ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _content(value: Any) -> str:  # noqa: ANN401 -- as above
    """Content, which may be a list of parts."""
    parts = value if isinstance(value, list) else [value]
    return "".join(_written(part.get("text", part) if isinstance(part, dict) else part) for part in parts)


def _called(call: Any) -> Iterable[str]:  # noqa: ANN401 -- as above
    """What a call of a tool says: of what, and with what."""
    if not isinstance(call, dict):
        return [_written(call)]
    function = call.get("function") or call.get("custom")
    if not isinstance(function, dict):
        return [_written(function)]
    return [_written(function.get(name)) for name in ("name", "arguments", "input")]


def _pieces(choice: dict[str, Any]) -> Iterable[tuple[tuple[int, ...], str]]:
    """What a choice or a piece of one says, each with its place in the whole."""
    message = choice.get("delta") or choice.get("message") or {}
    if not isinstance(message, dict):
        raise ValueError("a choice is no message")  # noqa: TRY004 -- of what a server sent
    audio = message.get("audio")
    of_audio = (audio.get("transcript"), audio.get("data")) if isinstance(audio, dict) else (audio,)
    plain = (message.get(name) for name in ("reasoning_content", "reasoning"))
    contents = map(_content, (choice.get("text"), message.get("content"), message.get("refusal")))
    yield from (((0, place), text) for place, text in enumerate((*map(_content, plain), *contents)))
    yield from (((1, place), _written(each)) for place, each in enumerate(of_audio))
    calls = message.get("tool_calls") or []
    for at, call in enumerate(calls if isinstance(calls, list) else [calls]):
        yield from (((2, _index(call, at), place), text) for place, text in enumerate(_called(call)))
    yield from (((3, place), text) for place, text in enumerate(_called({"function": message.get("function_call")})))


def _index(numbered: Any, otherwise: int) -> int:  # noqa: ANN401 -- as above
    """Which choice or call it is a piece of."""
    found = numbered.get("index") if isinstance(numbered, dict) else None
    return found if isinstance(found, int) else otherwise


def _choices(part: bytes) -> list[Any]:
    """The choices of a body or an event."""
    # Not by msgspec: servers write what only Python reads, NaN among log-probabilities for instance.
    answer = json.loads(part)
    if not isinstance(answer, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 -- of what a server sent
    if answer.get("error"):
        raise ValueError(f"it tells of an error: {_written(answer['error'])}")
    choices = answer.get("choices") or []
    if not (isinstance(choices, list) and all(each is None or isinstance(each, dict) for each in choices)):
        raise ValueError("its choices are no list of them")
    return choices


def answer_text(body: bytes) -> str:
    """Return what a chat or a completion says, streamed or not: reasoning, content and the functions that it calls.

    Raises:
        ValueError: It is none, tells of an error, or says nothing.
    """
    lines = body.removeprefix(_BOM).splitlines()
    events = [line.removeprefix(b"data:").strip() for line in lines if line.startswith(b"data:")]
    said: defaultdict[tuple[int, ...], str] = defaultdict(str)
    count = 0
    try:
        for part in events or [body]:
            choices = _choices(part) if part not in {b"", b"[DONE]"} or not events else []
            count += len(choices)
            for at, choice in enumerate(choices):
                for place, piece in _pieces(choice or {}):
                    whole = (_index(choice, at), *place)
                    said[whole] += piece
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"an answer cannot be read as one of OpenAI's API: {problem}") from None
    if not count:
        raise ValueError("an answer has no choices, as one of OpenAI's API has")
    text = "".join(said[place] for place in sorted(said))
    if not text:
        raise ValueError("an answer says nothing that can be compared")
    # A character may come as two halves, each in an event of its own.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


class AnswerComparison:
    """Asks each of two servers once, and compares their answers.

    Args:
        rule: What they have to be; nobody is asked where they need not be anything.
    """

    def __init__(self, rule: SameAnswers) -> None:
        self._rule = rule
        self._answers: dict[Arm, list[str]] = {}

    def ask(self, arm: Arm, target: Target, instance: Instance) -> list[Reason]:
        """Ask a server that runs, unless it was; what is wrong with its answers, once both were asked."""
        if not self._rule or arm in self._answers:
            return []
        self._answers[arm], found = asked(target, instance)
        if not found and len(self._answers) == len(ARMS):
            headers = target.requests[0].headers
            answers = self._answers["base"], self._answers["candidate"]
            found = unlike_answers(*answers, self._rule, lambda text: instance.shown(text, headers))
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
        shown = instance.shown(str(problem), target.requests[0].headers)
        text = f"the answers could not be compared: {one_line(shown)}"
        return [], [Reason(ReasonKind.REQUEST_ERRORS, text)]


def _why_unlike(pair: tuple[str, str], rule: SameAnswers) -> str | None:
    """What a rule says of two answers, if anything; None where they are alike."""
    if not callable(rule):
        return None if pair[0] == pair[1] else ""
    try:
        if rule(*pair):
            return None
    except Exception as problem:  # noqa: BLE001 -- the rule is the user's code: whatever it raises is its "no"
        return f"the rule raised {type(problem).__name__}: {problem}"
    return "the rule returned False for equal texts" if pair[0] == pair[1] else ""


def unlike_answers(
    base: Sequence[str], candidate: Sequence[str], rule: SameAnswers, shown: Callable[[str], str] = str
) -> list[Reason]:
    """Tell how many answers are not alike, and show the first; empty if all are.

    Args:
        base: Answers, in the order of the prompts.
        candidate: The other server's.
        rule: What they have to be.
        shown: Masks secrets; of whole texts, for a part of a secret is not known as such.
    """
    pairs = list(zip(base, candidate, strict=False))
    unlike = [(number, why) for number, pair in enumerate(pairs) if (why := _why_unlike(pair, rule)) is not None]
    if not unlike:
        return []
    number, why = unlike[0]
    return [
        Reason(
            ReasonKind.WRONG_ANSWERS,
            f"unlike answers: those to {len(unlike)} of {len(pairs)} prompts; the first is that to prompt {number},"
            f" where {one_line(shown(why)) or _parted(*map(shown, pairs[number]))}",
        )
    ]


def _parted(base: str, candidate: str) -> str:
    """Where two texts part, and how they go on."""
    if base == candidate:
        return "only secrets differ"
    texts = (base, candidate)
    common = next((at for at, each in enumerate(zip(*texts, strict=False)) if each[0] != each[1]), min(map(len, texts)))
    theirs, ours = (repr(text[common : common + _SHOWN]) for text in texts)
    return f"from character {common} on the candidate says {ours}, the base {theirs}"


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


def unlike_recorded(recorded: Iterable[Session], now: Iterable[Session]) -> Reason | None:
    """Tell that answers are not those that a baseline was recorded with; None where they are.

    How they differ is not known then: a rule of one's own is asked only where both servers run.

    Args:
        recorded: Its sessions; what any of them said is right.
        now: Those that are judged by it.
    """
    known = list(zip_longest(*(session.said for session in recorded if session.said)))
    # None stands for no answer: right where a session has none.
    number = next(
        (
            at
            for session in now
            for at, (answer, right) in enumerate(zip_longest(session.said, known, fillvalue=None))
            if answer not in (right or ())
        ),
        None,
    )
    if number is None:
        return None
    return Reason(
        ReasonKind.WRONG_ANSWERS,
        f"unlike answers: that to prompt {number} is not one that the baseline was recorded with; what differs is"
        " shown side by side: --against=COMMIT",
    )


def contradicting(sessions: Sequence[Session]) -> Reason | None:
    """Tell that sessions of one server gave other answers to the same prompts; None where they did not."""
    unlike = unlike_recorded(sessions[:1], sessions[1:])
    if unlike is None:
        return None
    text = "unlike answers: the sessions of this recording contradict each other; make them repeatable: temperature=0"
    return unlike.with_text(text)
