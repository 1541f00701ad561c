"""Two servers are asked the same before their loads, and what they say is held against each other."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.experiment.pairing import Pairing
from pytest_gpuserve.experiment.same_answers import answer_text, contradicting, unlike_answers, unlike_recorded
from pytest_gpuserve.experiment.shape import LoadShape, Terms
from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.measure.window import Session
from pytest_gpuserve.testing import Unseen
from tests.fakes import chat_server
from tests.servers.deployments import Starts
from tests.servers.somebody import FACTORY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpuserve.experiment.handle import Target

ANYTHING = st.recursive(st.none() | st.text(), lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner))
CALL = [{"id": "call_7", "function": {"name": "f", "arguments": "{}"}}]


def streamed(*deltas: dict[str, Any]) -> bytes:
    """A stream of these."""
    events = [json.dumps({"id": "1", "choices": [{"delta": delta}]}) for delta in deltas]
    return "".join(f"data: {each}\n\n" for each in (*events, '{"choices": [], "usage": {}}', "[DONE]")).encode()


@given(st.lists(st.text()).filter(any))
def test_what_is_said_is_the_same_in_a_stream_and_whole(pieces: list[str]) -> None:
    """However it is cut into chunks, as chat and as completion."""
    text = "".join(pieces)
    assert answer_text(streamed({"role": "assistant"}, *({"content": piece} for piece in pieces))) == text
    for choice in ({"message": {"content": text, "tool_calls": None}}, {"text": text}):
        assert answer_text(json.dumps({"choices": [choice]}, indent=1).encode()) == text


def test_reasoning_and_calls_are_said_too() -> None:
    """Without what is another one each time."""
    whole = {"message": {"reasoning_content": "hm", "content": None, "tool_calls": CALL}}
    assert answer_text(json.dumps({"choices": [whole]}).encode()) == "hmf{}"
    assert answer_text(streamed({"reasoning_content": "hm"}, {"tool_calls": CALL})) == "hmf{}"


def events(*chunks: str) -> bytes:
    """A stream of chunks as they are written."""
    return "".join(f"data: {chunk}\n\n" for chunk in chunks).encode()


def said(name: str, value: object, **more: object) -> str:
    """A chunk that says this."""
    return json.dumps({"choices": [{"delta": {name: value}, **more}]})


A = said("content", "a")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            events(
                said("function_call", {"name": "f", "arguments": '{"x'}), said("function_call", {"arguments": '"}'})
            ),
            'f{"x"}',
        ),
        (events(said("audio", {"id": "1", "data": "QQ"}), said("audio", {"transcript": "hm"})), "hmQQ"),
        (events(A, '{"choices": null, "usage": {"completion_tokens": 1}}'), "a"),
        (events('{"choices": [{"delta": {"content": "a"}, "logprobs": NaN}]}'), "a"),
        (events("", A, "[DONE]"), "a"),
        (events(said("content", [{"text": "a"}, {"text": ""}, {"type": "image"}])), 'a{"type": "image"}'),
        (events(said("content", "\ud83d"), said("content", "\ude00")), "\U0001f600"),
        (events(A, said("tool_calls", [{"index": 0, "function": None}])), "a"),
        (events(said("content", "b", index=1), said("content", "a", index=0), said("content", "c", index=1)), "abc"),
    ],
)
def test_what_the_load_counts_is_said(body: bytes, text: str) -> None:
    """However a server writes it, and in whatever order it sends its choices."""
    assert answer_text(body) == text


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (events(A, '{"error": {"message": "out of memory"}}'), "tells of an error: .*out of memory"),
        (b'{"error": "oom", "choices": [{"message": {"content": "a"}}]}', "tells of an error: oom"),
        (events(said("content", ""), said("role", "assistant")), "says nothing that can be compared"),
        (b'{"choices": [{"message": {"content": null}}]}', "says nothing that can be compared"),
    ],
)
def test_what_cannot_be_compared_is_refused(body: bytes, problem: str) -> None:
    """Two servers that both fail, or both say nothing, are not alike by that."""
    with pytest.raises(ValueError, match=problem):
        answer_text(body)


@given(st.binary() | ANYTHING.map(lambda plain: json.dumps({"choices": plain}).encode()))
def test_what_is_no_answer_is_refused(body: bytes) -> None:
    """As such, whatever it is."""
    with suppress(ValueError):
        assert isinstance(answer_text(body), str)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (
            True,
            "2 of 3 prompts; the first is that to prompt 1, where from character 2 on the candidate says 'd', the",
        ),
        (lambda base, candidate: base[0] == candidate[0], "those to 1 of 3 prompts; the first is that to prompt 2,"),
        (lambda base, candidate: base[9] == candidate[9], "those to 3 of 3 prompts"),
        (lambda base, candidate: len(base) == len(candidate), ""),
    ],
)
def test_answers_are_alike_by_a_rule(rule: bool | Callable[[str, str], object], told: str) -> None:  # noqa: FBT001 -- what a test says
    """The first that is not is shown from where it parts; a rule that raises says no."""
    found = unlike_answers(["ab", "abc", "x"], ["ab", "abd", "y"], rule)
    assert [told in reason.text for reason in found] == [True] * bool(told)


SECRET = "sk-0123456789abcdef0123456789"


@pytest.mark.parametrize(
    ("texts", "rule", "told"),
    [
        (("sk-0", SECRET), True, "from character 0 on the candidate says '<KEY>', the base 'sk-0'"),
        (("x", f"{'y' * 50}{SECRET}"), True, f"the candidate says '{'y' * 50}<KEY>', the base 'x'"),
        ((SECRET, "<KEY>"), True, "where only secrets differ"),
        (("a", "b"), lambda base, candidate: base[9] == candidate, "the rule raised IndexError: string index out of"),
        (("a", SECRET), lambda base, candidate: {}[candidate], "the rule raised KeyError: '<KEY>'"),
        (("a", "a"), lambda base, candidate: False, "where the rule returned False for equal texts"),
    ],
)
def test_what_is_told_of_unlike_answers(
    texts: tuple[str, str],
    rule: bool | Callable[[str, str], object],  # noqa: FBT001 -- what a test says
    told: str,
) -> None:
    """No part of a secret, and what went wrong in a rule."""
    (reason,) = unlike_answers(texts[:1], texts[1:], rule, lambda text: text.replace(SECRET, "<KEY>"))
    assert told in reason.text


@pytest.mark.parametrize(
    ("recorded", "now", "number"),
    [
        (["ab", "ac"], ["ab"], None),
        (["ab", "ac"], ["ac", "ab"], None),
        (["ab", "ac"], ["ab", "ad"], 1),
        (["ab"], ["a"], 1),
        (["a"], ["ab"], 1),
        ([""], [""], None),
    ],
)
def test_what_any_recorded_session_said_is_right(recorded: list[str], now: list[str], number: int | None) -> None:
    """A letter for each answer; sessions that say other things contradict each other."""

    def sessions(answers: list[str]) -> list[Session]:
        return [Session((), "", said=tuple(each)) for each in answers]

    reason = unlike_recorded(sessions(recorded), sessions(now))
    assert (reason and reason.text.partition(" is not ")[0]) == (
        None if number is None else f"unlike answers: that to prompt {number}"
    )
    assert (contradicting(sessions(recorded)) is None) == (len(set(recorded)) == 1)


def test_both_servers_are_asked_before_their_loads(tmp_path: Path) -> None:
    """What differs makes the round invalid, and nothing is measured."""

    def target(every: str) -> Target:
        kind = FACTORY.command(["{python}", chat_server.__file__, "{port}", every]).kind
        return Starts(tmp_path / every).handle(kind).chat("hi", same_answers=True)

    terms = Terms(LoadShape(Closed(2)), requests_wanted=1, most_foreign_cores=9.0, by_turns=False, seed="s")
    pairing = Pairing(target("0"), target("1"), terms, Unseen())
    pairing.measure(3)
    (measured,) = pairing.rounds
    assert not measured.blocks
    # What an earlier run decided without asking is of another load.
    assert target("0").fingerprint()["same_answers"] == "exactly"
    (reason,) = measured.problems
    assert reason.kind is ReasonKind.WRONG_ANSWERS
    assert (
        "those to 1 of 1 prompts; the first is that to prompt 0, where from character 0 on the candidate says 'ill"
        in reason.text
    )
