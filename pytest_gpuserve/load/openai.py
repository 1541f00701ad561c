"""Requests of OpenAI's API, for servers of language models: chat and completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.prompt_set import Prompt, Prompts
from pytest_gpuserve.load.request import NUMBER_PLACE, Expect, Request
from pytest_gpuserve.load.schedule import check_whole

Messages = Sequence[Mapping[str, object]] | str | Prompts
"""Input of a chat: a list of messages, the text of a single user message, or `prompts`."""

Method = Literal["chat", "completions"]

MAX_TOKENS: Final = 128
"""Default length of an answer."""

_PATHS: Final = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

_ARGUMENTS: Final = frozenset({"messages", "prompt", "model", "max_tokens", "stream", "ignore_eos"})
"""Fields of the body that arguments set."""

_NOT_OF_ONE_TOKEN: Final = frozenset({"min_tokens", "max_completion_tokens", "stream_options"})
"""Fields that a server refuses in a request for one token without a stream."""


@dataclass(frozen=True)
class ApiCall:
    """A call of the API, with any input.

    Args:
        method: Method of a server's handle.
        model: Name of the model; empty to leave it out.
        extra: Further fields of the body.
        headers: Headers of the request.
        expect: As for `Request`.

    Raises:
        UsageProblem: A value is not valid.
    """

    method: Method
    model: str = ""
    extra: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    expect: Expect | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, str):
            raise UsageProblem(f"{self.method}(model=...) is a name, not {self.model!r}")
        for name, given, example in (
            ("extra", self.extra, {"top_p": 0.9}),
            ("headers", self.headers, {"Authorization": "Bearer ..."}),
        ):
            if not _is_object(given):
                what = f"{self.method}({name}=...) takes values by name"
                raise UsageProblem(what, found=repr(given), remedies=[f"{name}={json.dumps(example)}"])
        for name in sorted(_ARGUMENTS.intersection(self.extra)):
            raise UsageProblem(
                f"{self.method}(extra=...): {name!r} is not another field",
                remedies=[f"leave it out of extra=..., because an argument of server.{self.method}(...) sets it"],
            )

    def request(self, fields: Mapping[str, object], prefix: str | None = None) -> Request:
        """Make a request.

        Args:
            fields: Fields of the body, its input first.
            prefix: Begin of the input, which ends with a `NUMBER_PLACE`; None if all sends are the same.

        Raises:
            UsageProblem: The fields cannot be written as JSON.
        """
        named = {"model": self.model} if self.model else {}
        try:
            body = json.dumps({**fields, **named, **self.extra}, allow_nan=False).encode("ascii")
        except (TypeError, ValueError) as problem:
            raise UsageProblem(f"{self.method}(...): this is not JSON", found=str(problem)) from None
        begin = b"" if prefix is None else json.dumps(prefix)[:-1].encode("ascii")
        given = any(name.lower() == "content-type" for name in self.headers)
        return Request(
            method="POST",
            path=_PATHS[self.method],
            body=body,
            headers={**({} if given else {"Content-Type": "application/json"}), **self.headers},
            expect=self.expect,
            number_at=body.index(begin) + len(begin) - len(NUMBER_PLACE) if begin else None,
        )


def generations(
    call: ApiCall, asked: Messages, *, max_tokens: int | None, stream: bool, ignore_eos: bool
) -> tuple[Request, ...]:
    """Make the requests of a chat or of completions: one, or one for each prompt.

    Args:
        call: Common part of the requests.
        asked: The input.
        max_tokens: Most tokens of an answer; None for the prompts' own limit, or ``MAX_TOKENS``.
        stream: Whether the answer is a stream, with its token count at the end.
        ignore_eos: Whether it goes on until ``max_tokens``, which vLLM, SGLang and llama.cpp can do.

    Raises:
        UsageProblem: The input or an argument is not valid.
    """
    if max_tokens is not None:
        check_whole(f"{call.method}(max_tokens=...)", max_tokens, 1)
    if isinstance(asked, Prompts) and max_tokens is not None:
        raise UsageProblem(
            f"{call.method}(max_tokens=...): the prompts set the length of their answers",
            remedies=["leave out max_tokens=...", f"prompts(..., output_tokens={max_tokens})"],
        )
    common = {
        "temperature": 0,
        "stream": stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
        **({"ignore_eos": True} if ignore_eos else {}),
    }
    if not isinstance(asked, Prompts):
        return (call.request({**_input(call, asked), "max_tokens": max_tokens or MAX_TOKENS, **common}),)
    return tuple(
        call.request(
            {**_input(call, _input_of(call, asked, each)), "max_tokens": each.output_tokens, **common},
            asked.numbered_prefix,
        )
        for each in asked.each
    )


def one_token(call: ApiCall, asked: Messages) -> Request:
    """Make the request that tells whether the model answers: the first one, limited to one token.

    Raises:
        UsageProblem: The input is not valid.
    """
    extra = {name: value for name, value in call.extra.items() if name not in _NOT_OF_ONE_TOKEN}
    first = asked.text(asked.each[0]) if isinstance(asked, Prompts) else asked
    bare = replace(call, extra=extra, expect=None)
    return generations(bare, first, max_tokens=1, stream=False, ignore_eos=False)[0]


def _is_object(given: object) -> bool:
    return isinstance(given, Mapping) and all(isinstance(name, str) for name in given)


def _input_of(call: ApiCall, prompts: Prompts, prompt: Prompt) -> object:
    return prompts.messages(prompt) if call.method == "chat" else prompts.text(prompt)


def _input(call: ApiCall, asked: object) -> dict[str, object]:
    if call.method == "completions":
        if not isinstance(asked, str):
            raise UsageProblem(
                "completions(...) takes a text or prompts(...)",
                found=repr(asked),
                remedies=["server.chat([...]) takes messages"],
            )
        return {"prompt": asked}
    if isinstance(asked, str):
        return {"messages": [{"role": "user", "content": asked}]}
    messages = list(asked) if isinstance(asked, Sequence) and not isinstance(asked, bytes) else []
    if not messages or not all(_is_object(each) and isinstance(each.get("role"), str) for each in messages):
        raise UsageProblem(
            "chat(...) takes a list of messages, each with a role, or a text, or prompts(...)",
            found=repr(asked),
            remedies=['server.chat([{"role": "user", "content": "..."}])', 'server.chat("...")'],
        )
    return {"messages": messages}
