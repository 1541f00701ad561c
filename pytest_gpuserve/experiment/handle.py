"""A test's view of a server: a deployment that can be started afresh, and requests for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.single_request import ANSWER_SECONDS, Answer, send_once
from pytest_gpuserve.experiment.telemetry import NO_TELEMETRY, TelemetrySource
from pytest_gpuserve.load.driver import most_under_way
from pytest_gpuserve.load.kserve import RPC, Inference, close_to, grpc_message, http_request, tensors_of
from pytest_gpuserve.load.openai import ApiCall, Messages, generations, one_token
from pytest_gpuserve.load.prompt_set import Prompts
from pytest_gpuserve.load.request import Expect, Request
from pytest_gpuserve.load.schedule import Closed, Steps
from pytest_gpuserve.load.shared_memory import Layout, share
from pytest_gpuserve.load.wire import Endpoint, Tls
from pytest_gpuserve.process.ports import is_here
from pytest_gpuserve.process.ready import Ask
from pytest_gpuserve.servers.base import Guarded, ServerKind, query
from pytest_gpuserve.units import digest

if TYPE_CHECKING:
    from pytest_gpuserve.builds.relocation import Relocation
    from pytest_gpuserve.load.openai import Method
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.shared_memory import SharedTensors
    from pytest_gpuserve.servers.instance import Instance

Protocol = Literal["http", "sse", "grpc"]

WITHOUT = "leave out shared_memory={...}"

Starter: TypeAlias = "Callable[[ServerKind, Ask, Callable[[], None] | None], AbstractContextManager[Instance]]"
"""Starts a server of a kind, and ends it with its block; the session makes it.

The third argument is called when the process runs, before its readiness is awaited.
"""


@dataclass(frozen=True)
class ServerHandle:
    """A deployment: the means to start a server, not a running process, because fresh starts are the unit of evidence.

    Args:
        kind: The server with its arguments.
        starter: Starts the server on this machine.
    """

    kind: ServerKind
    starter: Starter = field(repr=False, compare=False)

    def __repr__(self) -> str:
        """The kind's name only: pytest shows the arguments of a failed test, and variables may be secrets."""
        return f"ServerHandle({self.kind.name})"

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | str = b"",
        headers: Mapping[str, str] | None = None,
        expect: Expect | str | None = None,
        stream: bool = False,
    ) -> Target:
        """Describe a request to this server, for ``load``.

        Args:
            method: HTTP method.
            path: Path of the request.
            body: Body of the request; text is encoded as UTF-8.
            headers: Headers besides ``Host`` and ``Content-Length``.
            expect: The exact body of a right answer, or a function of the body that raises or returns False for a
                wrong one; None checks only the status.
            stream: Whether the answer is a stream of server-sent events, whose tokens are timed.

        Raises:
            UsageProblem: A part is not valid in an HTTP request.
        """
        request = Request(
            method=method,
            path=path,
            body=body.encode() if isinstance(body, str) else body,
            headers=dict(headers or {}),
            expect=expect.encode() if isinstance(expect, str) else expect,
        )
        return self._over_http((request,), stream=stream)

    def _over_http(
        self, requests: tuple[Request, ...], *, stream: bool, readiness: Request | None = None, asked: object = None
    ) -> Target:
        is_shuffled = isinstance(asked, Prompts) and not asked.are_alike
        pauses = asked.pauses if isinstance(asked, Prompts) else ()
        protocol: Protocol = "sse" if stream else "http"
        return Target(self, requests, protocol=protocol, readiness=readiness, shuffled=is_shuffled, pauses=pauses)

    def chat(
        self,
        messages: Messages,
        *,
        max_tokens: int | None = None,
        model: str = "",
        stream: bool = True,
        ignore_eos: bool = False,
        extra: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        expect: Expect | str | None = None,
    ) -> Target:
        """Describe a chat with a language model, by OpenAI's API: ``POST /v1/chat/completions`` at temperature 0.

        The server is ready when it has sent the first token of a streamed answer.

        Args:
            messages: ``[{"role": "user", "content": "..."}]``, a text for such a message, or
                `pytest_gpuserve.load.prompts`, which gives each send its own message.
            max_tokens: Most tokens of an answer, 128 by default; prompts set their own.
            model: Name of the model; by default the server's ``model=``, or none.
            stream: Whether the answer is a stream, whose tokens are timed. The request then asks for the token count.
            ignore_eos: Whether the answer goes on until ``max_tokens``, so that all answers have the same length. vLLM,
                SGLang and llama.cpp know this field.
            extra: Further fields of the body, such as ``{"temperature": 1}``.
            headers: Headers besides ``Host``, ``Content-Length`` and ``Content-Type``.
            expect: As for ``request``; for a stream it gets the whole body with its events.

        Raises:
            UsageProblem: A value is not valid in such a request.
        """
        call = self._call("chat", model, extra, headers, expect)
        requests = generations(call, messages, max_tokens=max_tokens, stream=stream, ignore_eos=ignore_eos)
        return self._over_http(requests, stream=stream, readiness=one_token(call, messages), asked=messages)

    def completions(
        self,
        prompt: Prompts | str,
        *,
        max_tokens: int | None = None,
        model: str = "",
        stream: bool = True,
        ignore_eos: bool = False,
        extra: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        expect: Expect | str | None = None,
    ) -> Target:
        """Describe the completion of a text, without a chat template: ``POST /v1/completions``; see ``chat``."""
        call = self._call("completions", model, extra, headers, expect)
        requests = generations(call, prompt, max_tokens=max_tokens, stream=stream, ignore_eos=ignore_eos)
        return self._over_http(requests, stream=stream, readiness=one_token(call, prompt), asked=prompt)

    def _call(
        self,
        method: Method,
        model: str,
        extra: Mapping[str, object] | None,
        headers: Mapping[str, str] | None,
        expect: Expect | str | None,
    ) -> ApiCall:
        right = expect.encode() if isinstance(expect, str) else expect
        return ApiCall(method, model or self.kind.default_model, extra or {}, headers or {}, right)

    def infer(
        self,
        inputs: Mapping[str, object],
        *,
        model: str = "",
        outputs: Sequence[str] = (),
        expect: Mapping[str, object] | Expect | None = None,
        grpc: bool = False,
        version: str = "",
        request_id: str = "",
        parameters: Mapping[str, bool | int | float | str] | None = None,
        shared_memory: Mapping[str, int] | None = None,
    ) -> Target:
        """Describe an inference in the protocol KServe v2, which Triton, pytriton and a torch worker accept.

        Args:
            inputs: Arrays, or nested lists of numbers or strings, by name; their first dimension is the batch.
            model: Name of the model; optional if the server has only one.
            outputs: Names of the outputs to return; all if empty.
            expect: Arrays by name, compared with `pytest_gpuserve.load.kserve.close_to`; or as for ``request``.
            grpc: Whether to send the request over gRPC instead of HTTP; answers are decoded alike.
            version: Version of the model; the server chooses if empty.
            request_id: Id that comes back with the answer.
            parameters: Parameters of the request, such as ``{"sequence_id": 7}``.
            shared_memory: Outputs by name with the most bytes that each takes; replaces ``outputs``. Inputs and outputs
                then go through the system shared memory of this host, and requests and answers carry no data. The
                server has to map shared memory (Triton, pytriton), and ``expect`` has to compare arrays.

        Raises:
            UsageProblem: A part is not valid in such a request, the model is not known, or the server does not support
                gRPC or shared memory.
        """
        inference = Inference(
            model or self._only_model(),
            tensors_of("input", inputs),
            outputs=tuple(outputs if shared_memory is None else shared_memory),
            version=version,
            request_id=request_id,
            parameters=dict(parameters or {}),
        )
        sharing = None if shared_memory is None else Sharing((inference,), self._layout(shared_memory, outputs))
        check = close_to(expect) if isinstance(expect, Mapping) else expect
        request = http_request(inference, check if sharing is None else sharing.layout.expecting(check))
        if not grpc:
            return Target(self, (request,), sharing=sharing)
        if "grpc" not in self.kind.ports:
            raise UsageProblem(
                f"the {self.kind.name} server speaks no gRPC",
                remedies=["leave out grpc=True", "a remote server's port is named: remote_server(URL, grpc_port=8001)"],
            )
        return Target(self, (request,), protocol="grpc", messages=(grpc_message(inference),), sharing=sharing)

    def _layout(self, shared_memory: Mapping[str, int], outputs: Sequence[str]) -> Layout:
        if outputs:
            raise UsageProblem(
                "infer(...) takes either outputs=... or shared_memory=..., which names them too",
                remedies=["leave out outputs=..."],
            )
        return Layout(tuple(shared_memory.items()))

    def _only_model(self) -> str:
        if not self.kind.default_model:
            raise UsageProblem(
                f"infer(...) to the {self.kind.name} server has to say which model",
                remedies=['server.infer({...}, model="NAME"), or model="NAME" where the server is described'],
            )
        return self.kind.default_model

    def post(
        self,
        path: str,
        *,
        body: bytes | str = b"",
        headers: Mapping[str, str] | None = None,
        expect: Expect | str | None = None,
        stream: bool = False,
    ) -> Target:
        """Describe a POST; see ``request``."""
        return self.request("POST", path, body=body, headers=headers, expect=expect, stream=stream)

    def get(self, path: str, *, headers: Mapping[str, str] | None = None, expect: Expect | str | None = None) -> Target:
        """Describe a GET; see ``request``."""
        return self.request("GET", path, headers=headers, expect=expect)

    def rotate(self, targets: Sequence[Target], *, shuffled: bool = False) -> Target:
        """Describe several requests that are sent in turn, so that a cache of the server's does not help.

        Each answer is compared with its own request's expectation. An answer that is right for another request of the
        rotation is recognised as mixed up.

        Args:
            targets: Requests to this server: all of them streams, or all of them not.
            shuffled: Whether the order is random by ``load``'s seed.

        Raises:
            UsageProblem: The list is empty, a request is for another server, or the requests do not go together.
        """
        if not targets:
            raise UsageProblem("rotate([...]) takes one request at least", remedies=["rotate([server.post(...), ...])"])
        if any(target.server != self for target in targets):
            raise UsageProblem("rotate([...]) takes requests to its own server, and one is for another")
        if len({target.protocol for target in targets}) > 1:
            raise UsageProblem("rotate([...]): streams and others, or gRPC and others, cannot be mixed in one load")
        return Target(
            self,
            tuple(request for target in targets for request in target.requests),
            shuffled=shuffled or any(target.shuffled for target in targets),
            protocol=targets[0].protocol,
            messages=tuple(message for target in targets for message in target.messages),
            sharing=_joined_sharing([target.sharing for target in targets]),
            readiness=targets[0].readiness,
            pauses=tuple(pause for target in targets for pause in target.pauses or (None,) * len(target.requests))
            if any(target.pauses for target in targets)
            else (),
        )


@dataclass(frozen=True)
class Sharing:
    """Part of a target that goes through shared memory.

    Args:
        inferences: The payloads.
        layout: The outputs.
    """

    inferences: tuple[Inference, ...]
    layout: Layout

    @contextmanager
    def opened(self, instance: Instance, schedule: Schedule) -> Iterator[SharedTensors]:
        """Own memory that a running server maps, for a load by this schedule; remove it at the end.

        Raises:
            UsageProblem: See ``slots_needed``; or the server is on another machine, or shared memory is full.
            ServerFailed: The server does not map the memory.
        """
        site = instance.site
        if not is_here(site.host):
            raise UsageProblem(
                f"the server at {site.host} has no memory in common with this machine",
                remedies=["run the test on the machine of the server", WITHOUT],
            )
        headers = instance.kind.owner_headers(site) if isinstance(instance.kind, Guarded) else {}

        def ask(method: str, path: str, body: bytes) -> tuple[int, str]:
            what = "the server could not be told to use shared memory of this host"
            reply = query(site, Ask(method, f"/v2/systemsharedmemory/region/{path}", body, headers), what=what)
            return reply.status, instance.shown(reply.body.decode(errors="replace"), headers)

        with share(self.inferences, self.layout, slots_needed(schedule), ask) as shared:
            yield shared


@dataclass(frozen=True)
class Target:
    """Requests, and the deployment that they go to.

    Args:
        server: The deployment.
        requests: The requests, which rotate.
        shuffled: Whether the order is random by the seed.
        protocol: HTTP, HTTP with answers as server-sent events, or gRPC.
        messages: The requests as gRPC messages. The HTTP form of the first one tells whether the model answers.
        sharing: Part that goes through shared memory, or None. The first request, which tells whether the model
            answers, is always sent with its tensors.
        readiness: Request that tells whether the model answers; None for the first of ``requests``.
        pauses: For each request the seconds since the previous answer of its conversation; None for the first request
            of a conversation. Empty if the load has no conversations.
        telemetry_source: Samples the GPU during the load.
    """

    server: ServerHandle
    requests: tuple[Request, ...]
    shuffled: bool = False
    protocol: Protocol = "http"
    messages: tuple[bytes, ...] = ()
    sharing: Sharing | None = None
    readiness: Request | None = None
    pauses: tuple[float | None, ...] = ()
    telemetry_source: TelemetrySource = field(default=NO_TELEMETRY, repr=False, compare=False)

    def __repr__(self) -> str:
        """The requests without headers and bodies; see `ServerHandle`."""
        first = self.requests[0]
        more = f" and {len(self.requests) - 1} more" if len(self.requests) > 1 else ""
        return f"Target({first.method} {first.path}{more}, {self.server!r})"

    def relocated(self, relocation: Relocation) -> Target:
        """Make the same requests to the same deployment from another checkout or interpreter.

        Raises:
            NotInRevision: The other build has no such server, or the deployment would be the same there.
        """
        return replace(self, server=replace(self.server, kind=self.server.kind.relocated(relocation)))

    def started(self, beside: Callable[[], None] | None = None) -> AbstractContextManager[Instance]:
        """Start the deployment afresh; ready when its model answers.

        Args:
            beside: Called when the process runs, before its readiness is awaited.
        """
        request = self.readiness or self.requests[0]
        ask = Ask(request.method, request.path, request.body, request.headers)
        return self.server.starter(self.server.kind, ask, beside)

    def ask(self, running: Instance | None = None, *, timeout: float = ANSWER_SECONDS) -> Answer:
        """Send the request once, by itself, and return the answer; it is not measured.

        Args:
            running: The server from ``with target.started() as running:``, of this deployment. None starts a server for
                this one request, and ends it. The request is then sent twice, because the first one awaits readiness.
            timeout: Seconds until the whole answer must have arrived.

        Raises:
            Refused: The answer is an error: a status outside 200 to 299, or the like over gRPC.
            WrongAnswer: The answer is not what the request's ``expect`` says.
            ServerFailed: The server could not be started, has ended, or does not answer in time.
            UsageProblem: The target has several requests, goes through shared memory, or belongs to another deployment.
        """
        if len(self.requests) > 1:
            raise UsageProblem(
                f"ask() sends one request, not {len(self.requests)} that rotate",
                remedies=["call ask() on each of those that rotate([...]) was given"],
            )
        if self.sharing is not None:
            raise UsageProblem("ask() sends tensors with their request, not through shared memory", remedies=[WITHOUT])
        if running is None:
            with self.started() as fresh:
                return self.ask(fresh, timeout=timeout)
        if self.server.kind != running.kind:
            raise UsageProblem(
                f"a request to {self.server.kind.name} is sent to another deployment: {running.kind.name}",
                remedies=["with target.started() as running: others_of_the_same_server.ask(running)"],
            )
        (request,) = self.requests
        ((payload,),) = self.payloads(running)
        return send_once(running, self.endpoint(running), request, payload, timeout)

    def endpoint(self, instance: Instance) -> Endpoint:
        """Address of the requests."""
        site = instance.site
        tls = Tls(site.host, ca_file=site.ca_file) if site.tls else None
        if self.protocol == "grpc":
            return Endpoint("grpc", site.host, site.ports["grpc"], tls, rpc=RPC)
        return Endpoint(self.protocol, site.host, site.port, tls)

    def payloads(self, instance: Instance, shared: SharedTensors | None = None) -> tuple[tuple[bytes, ...], ...]:
        """The serialised requests for a plan: one form each, or in shared memory one for each slot."""
        if self.protocol == "grpc":
            messages = [[message] for message in self.messages]
            return tuple(map(tuple, messages if shared is None else shared.made_by(grpc_message)))
        requests = [[request] for request in self.requests] if shared is None else shared.made_by(http_request)
        authority = self.endpoint(instance).authority
        return tuple(tuple(request.to_bytes(authority) for request in each) for each in requests)

    def numbers_before_end(self) -> tuple[int, ...]:
        """Positions of the requests' number, for a plan."""
        places = [0 if each.number_at is None else len(each.body) - each.number_at for each in self.requests]
        return tuple(places) if any(places) else ()

    def as_thought(self, schedule: Schedule) -> Schedule:
        """The schedule, with the mean think time of the conversations if these have pauses of their own."""
        if not self.pauses or not isinstance(schedule, (Closed, Steps)):
            return schedule
        seconds = fmean(schedule.think_seconds if pause is None else pause for pause in self.pauses)
        return msgspec.structs.replace(schedule, think_seconds=seconds)

    def fingerprint(self) -> dict[str, str]:
        """Identity of this load, for a baseline."""
        prints = [request.fingerprint() for request in self.requests]
        words = prints[0] if len(prints) == 1 else _joined_fingerprint(prints)
        if self.shuffled:
            words["rotation"] = "shuffled"
        if self.numbers_before_end():
            words["numbers"] = "in each request"
        if self.pauses:
            words["conversations"] = f"{self.pauses.count(None)}, pauses {digest(repr(self.pauses))}"
        if self.protocol == "sse":
            words["answers"] = "server-sent events"
        elif self.protocol != "http":
            words["protocol"] = self.protocol
        if self.sharing is not None:
            words["tensors"] = "system shared memory"
        return words


def _joined_fingerprint(prints: list[dict[str, str]]) -> dict[str, str]:
    """Fingerprint of several requests: common values as they are, differing ones by their hash."""
    words = {"payloads": str(len(prints))}
    for name in prints[0]:
        values = [words_of_one[name] for words_of_one in prints]
        words[name] = values[0] if len(set(values)) == 1 else f"{len(set(values))} different: {digest(repr(values))}"
    return words


def slots_needed(schedule: Schedule) -> int:
    """Return the largest number of requests in flight, each of which needs its own place for the answer.

    Raises:
        UsageProblem: The requests in flight are not bounded.
    """
    most = most_under_way(schedule)
    if most is None:
        kind = type(schedule).__name__
        raise UsageProblem(
            "an open loop through shared memory needs a ceiling: each request in flight has a place of its own there",
            found=f"{kind} without max_in_flight",
            remedies=[f"schedule={kind}(..., max_in_flight=64)", "a closed loop: concurrency=16", WITHOUT],
        )
    return most


def _joined_sharing(parts: Sequence[Sharing | None]) -> Sharing | None:
    """Combine the shared memory of rotating requests; None if they use none."""
    layouts = dict.fromkeys(None if part is None else part.layout for part in parts)
    if len(layouts) > 1:
        raise UsageProblem(
            "rotate([...]): all requests go through shared memory with the same outputs, each of one size, or none do",
            found="; ".join("none" if layout is None else repr(dict(layout.sizes)) for layout in layouts),
            remedies=["give each infer(...) the same shared_memory={...}, with the most bytes that any of them takes"],
        )
    (layout,) = layouts
    inferences = tuple(inference for part in parts if part is not None for inference in part.inferences)
    return None if layout is None else Sharing(inferences, layout)
