"""Two servers are asked the same before their loads, and what they say is held against each other."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.experiment.pairing import Pairing
from pytest_gpuserve.experiment.same_answers import answer_text, unlike_answers
from pytest_gpuserve.experiment.shape import LoadShape, Terms
from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.load.schedule import Closed
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


@given(st.lists(st.text()))
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
