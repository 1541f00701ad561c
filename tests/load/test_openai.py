"""Requests of OpenAI's API: their bodies, their prompts, and errors for invalid ones."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.handle import ServerHandle, Starter, Target
from pytest_gpuserve.load import LogNormal, Uniform, prompts
from pytest_gpuserve.load.prompt_set import Prompt, Prompts
from pytest_gpuserve.load.request import NUMBER_PLACE, Request
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.servers.remote import RemoteServer

PLACE = NUMBER_PLACE.decode()
HI = [{"role": "user", "content": "hi"}]
TWO = Prompts((Prompt("één", 7), Prompt(PLACE, 9)), shared_prefix='"all"')


def handle(**more: Any) -> Any:  # noqa: ANN401 -- methods are given what a type checker refuses
    """A server that gets no request."""
    return ServerHandle(RemoteServer("127.0.0.1", 1, **more), cast("Starter", None))


def body(request: Request) -> Any:  # noqa: ANN401 -- JSON
    """The body of a request."""
    return json.loads(request.body)


STREAMED = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("target", "path", "sent", "protocol"),
    [
        (handle().chat(HI), "/v1/chat/completions", {"messages": HI, "max_tokens": 128, **STREAMED}, "sse"),
        (
            handle(default_model="m").chat("hi", max_tokens=3, ignore_eos=True, stream=False, extra={"temperature": 1}),
            "/v1/chat/completions",
            {"messages": HI, "model": "m", "max_tokens": 3, "temperature": 1, "stream": False, "ignore_eos": True},
            "http",
        ),
        (handle().completions("hi"), "/v1/completions", {"prompt": "hi", "max_tokens": 128, **STREAMED}, "sse"),
    ],
)
def test_what_each_method_sends(target: Target, path: str, sent: object, protocol: str) -> None:
    """Path, body, type of the body, and whether the answer is a stream, without unrequested fields."""
    (request,) = target.requests
    assert (request.path, body(request), target.protocol) == (path, sent, protocol)
    assert request.headers == {"Content-Type": "application/json"}
    assert target.numbers_before_end() == ()


@pytest.mark.parametrize(
    ("target", "text_of"),
    [
        (handle().chat(TWO), lambda sent: sent["messages"][0]["content"]),
        (handle().completions(TWO), lambda sent: sent["prompt"]),
    ],
)
def test_of_prompts_each_is_a_request_with_the_place_of_its_number(
    target: Target, text_of: Callable[[object], str]
) -> None:
    """Behind the shared prefix, also where the text looks like that place; as far from the end as it was written."""
    texts = []
    for request, before_end in zip(target.requests, target.numbers_before_end(), strict=True):
        at = len(request.body) - before_end
        written = request.body[:at] + b"0123456789" + request.body[at + len(NUMBER_PLACE) :]
        texts.append(text_of(json.loads(written)))
    assert texts == ['"all" 0123456789 één', f'"all" 0123456789 {PLACE}']
    assert [body(request)["max_tokens"] for request in target.requests] == [7, 9]
    assert target.fingerprint()["numbers"] == "in each request"


@pytest.mark.parametrize(
    ("second", "is_shuffled"), [(Prompt("c d", 7), False), (Prompt("c", 7), True), (Prompt("c d", 9), True)]
)
def test_prompts_of_unlike_lengths_are_sent_in_an_order_by_the_seed(second: Prompt, *, is_shuffled: bool) -> None:
    """Else a slower server, which comes less far in the list, would answer other prompts than a faster one."""
    asked = Prompts((Prompt("a b", 7), second))
    assert handle().chat(asked).shuffled is is_shuffled


def test_turns_are_conversations_of_users_who_wait_for_answers() -> None:
    """Each turn is a request with its history, whose number is where the first one's is.

    What else rotates with them is a conversation of one turn, and the schedule's think time comes before each.
    """
    asked = prompts(2, input_tokens=20, turns=2, think=3.0)
    target = handle().rotate([handle().chat(asked), handle().chat("hi")])
    assert [len(body(request)["messages"]) for request in target.requests] == [1, 3, 1, 3, 1]
    places = {request.number_at for request in target.requests[:4]}
    assert len(places) == 1
    assert target.pauses == (None, 3.0, None, 3.0, None)
    assert target.as_thought(Closed(4, think_seconds=0.5)) == Closed(4, think_seconds=(3 * 0.5 + 2 * 3.0) / 5)
    others = handle().chat(prompts(2, input_tokens=20, turns=2, think=4.0))
    assert handle().chat(asked).fingerprint() != others.fingerprint()
    alone = handle().chat(prompts(2))
    assert (alone.pauses, alone.as_thought(Closed(4))) == ((), Closed(4))


def test_one_token_tells_that_the_model_answers() -> None:
    """The readiness request is the first one, with one token, without a stream and conflicting fields."""
    target = handle().rotate([handle().chat(TWO, extra={"min_tokens": 5, "top_p": 0.5}), handle().chat("hi")])
    asked = target.readiness
    assert body(asked) == {
        "messages": [{"role": "user", "content": f'"all" {PLACE} één'}],
        "max_tokens": 1,
        "temperature": 0,
        "stream": False,
        "top_p": 0.5,
    }
    assert asked.path == target.requests[0].path


def test_headers_and_the_right_answer_are_as_for_any_request() -> None:
    """A content type of the user's is the only one that is sent; a text is the body of a right answer."""
    (request,) = handle().chat("hi", headers={"content-type": "application/x", "X": "1"}, expect="é").requests
    assert request.headers == {"content-type": "application/x", "X": "1"}
    assert request.expect == "é".encode()


@pytest.mark.parametrize(
    ("method", "arguments", "said"),
    [
        ("chat", {"messages": ["hi"]}, 'server.chat("...")'),
        ("chat", {"messages": []}, "takes a list of messages"),
        ("chat", {"messages": [{"content": "hi"}]}, "each with a role"),
        ("chat", {"messages": [{"role": "user", "content": b"hi"}]}, "not JSON"),
        ("chat", {"messages": HI, "extra": {"bias": float("nan")}}, "not JSON"),
        ("chat", {"messages": HI, "max_tokens": 0}, "not 0"),
        ("chat", {"messages": HI, "max_tokens": True}, "not True"),
        ("chat", {"messages": TWO, "max_tokens": 5}, "prompts(..., output_tokens=5)"),
        ("chat", {"messages": HI, "model": 5}, "a name, not 5"),
        ("chat", {"messages": HI, "extra": ["top_p"]}, 'extra={"top_p": 0.9}'),
        ("chat", {"messages": HI, "extra": {"stream": False}}, "an argument of server.chat"),
        ("completions", {"prompt": HI}, "server.chat([...])"),
        ("completions", {"prompt": prompts(2, turns=2)}, "leave out turns=..."),
    ],
)
def test_what_cannot_be_sent_is_told_with_what_helps(method: str, arguments: dict[str, Any], said: str) -> None:
    """Before anything is started."""
    with pytest.raises(UsageProblem) as caught:
        getattr(handle(), method)(**arguments)
    assert said in str(caught.value)


UNTYPED: Any = prompts


def test_the_same_seed_makes_the_same_prompts() -> None:
    """And another one others."""
    made = prompts(5, seed=1)
    assert made == prompts(5, seed=1)
    assert made != prompts(5, seed=2)
    assert len({prompt.text for prompt in made.each}) == 5


def test_lengths_are_as_asked_for() -> None:
    """Words and the four tokens of a number; the shared prefix comes on top, and is one for all."""
    made = prompts(400, input_tokens=Uniform(20, 40), output_tokens=LogNormal(mean=200, sd=100), shared_prefix=11)
    words = [len(prompt.text.split()) + 4 for prompt in made.each]
    assert (min(words), max(words)) == (20, 40)
    outputs = [prompt.output_tokens for prompt in made.each]
    assert statistics.fmean(outputs) == pytest.approx(200, rel=0.1)
    assert statistics.stdev(outputs) == pytest.approx(100, rel=0.25)
    assert len(made.shared_prefix.split()) == 11
    assert made.text(made.each[0]).startswith(f"{made.shared_prefix} 0000000000 ")


def test_a_tokenizer_counts(tmp_path: Path) -> None:
    """By the model's own file, or its folder, whole inputs have the requested numbers of tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    # Words take from two tokens, with the space before them, to several.
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(
        tokenizers.Regex(r"[a-e]|[0-9]|[^a-e0-9 ]+| "), "isolated"
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    made = prompts(20, input_tokens=100, tokenizer=tmp_path)
    assert made == prompts(20, input_tokens=100, tokenizer=tmp_path / "tokenizer.json")
    lengths = {len(tokenizer.encode(f"4827306915 {prompt.text}").ids) for prompt in made.each}
    assert max(lengths) <= 100
    assert min(lengths) >= 97


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"n": 0}, "prompts(n) must be a whole number from 1"),
        ({"n": 1, "input_tokens": 15}, "input_tokens=...) must be a whole number from 16"),
        ({"n": 1, "input_tokens": Uniform(1, 20)}, "from 16 to 1000000, not 1"),
        ({"n": 1, "output_tokens": 0}, "from 1"),
        ({"n": 1, "output_tokens": Uniform(1, 20.5)}, "from 1 to 1000000, not 20.5"),
        ({"n": 1, "turns": 0}, "turns"),
        ({"n": 1, "think": -1}, "think"),
        ({"n": 1, "think": "2"}, "think=LogNormal(mean=5"),
        ({"n": 1, "output_tokens": "10"}, "not '10'"),
        ({"n": 1, "shared_prefix": -1}, "shared_prefix"),
        ({"n": 1, "tokenizer": "nowhere.json"}, "the model's tokenizer.json"),
    ],
)
def test_what_cannot_be_a_prompt_is_told(arguments: dict[str, Any], said: str) -> None:
    """With the range, or what helps."""
    with pytest.raises(UsageProblem) as caught:
        UNTYPED(**arguments)
    assert said in str(caught.value)


def test_turns_are_sent_with_all_that_was_said_before_them() -> None:
    """Turns come with answers of random words of the requested length, each after its pause."""
    made = prompts(30, input_tokens=20, output_tokens=7, turns=3, think=Uniform(0.5, 2.0))
    assert made == prompts(30, input_tokens=20, output_tokens=7, turns=3, think=Uniform(0.5, 2.0))
    first, second, third = made.each[:3]
    assert third.before[:3] == (first.text, second.before[1], second.text)
    assert [len(text.split()) for text in (*third.before, third.text)] == [16, 7, 20, 7, 20]
    assert [message["role"] for message in made.messages(third)] == ["user", "assistant", "user", "assistant", "user"]
    assert [message["content"] for message in made.messages(third)] == [
        f"0000000000 {first.text}",
        *third.before[1:],
        third.text,
    ]
    assert made.pauses[::3] == (None,) * 30
    pauses = [pause for pause in made.pauses if pause is not None]
    assert 0.5 <= min(pauses) < 0.7
    assert 1.8 < max(pauses) <= 2.0
    assert len(pauses) == 60
    assert prompts(2).pauses == ()
