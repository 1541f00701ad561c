"""One start of the app, and what it answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.plugin.server_factory import ServerFactory
from pytest_gpuserve.servers.instance import started
from pytest_gpuserve.servers.triton_api import ask_triton, choose_roles, read_configs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pytest_gpuserve.experiment.handle import ServerHandle, Target
    from pytest_gpuserve.new.recognise import RecognisedApp
    from pytest_gpuserve.servers.base import Ask, ServerKind
    from pytest_gpuserve.servers.instance import Instance

_JSON: Final = {"Content-Type": "application/json"}
_PATHS: Final = {"mosec": "/inference", "litserve": "/predict", "command": "/"}


@dataclass(frozen=True)
class SampleRequest:
    """A request over HTTP; headers are those beside what each request has."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RequestOptions:
    """What the user says of the request; None leaves it to the app's kind."""

    method: str | None = None
    path: str | None = None
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def over(self, default: SampleRequest) -> SampleRequest:
        """The request to send; a body of the user's is declared JSON only where it looks like it."""
        body = default.body if self.body is None else self.body
        is_json = self.body is None or self.body.lstrip()[:1] in {b"{", b"["}
        return SampleRequest(
            (self.method or ("POST" if body else default.method)).upper(),
            self.path or default.path,
            body,
            {**(default.headers or _JSON if is_json and body else {}), **self.headers},
        )


def default_question(app: RecognisedApp) -> SampleRequest:
    """What an app that is no Triton is asked: a number for each key that it reads."""
    path = _PATHS[app.kind]
    if app.kind == "command":
        return SampleRequest("GET", path)
    body = json.dumps(dict.fromkeys(app.keys or ("input",), 1.0)).encode()
    return SampleRequest("POST", path, body, _JSON)


def triton_question(model: str, metadata: Mapping[str, Any]) -> SampleRequest:
    """A request with the names, types and shapes that a model declares; free dimensions are 1, values 0.

    Raises:
        UsageProblem: An input has a type that JSON cannot carry.
    """
    inputs = []
    for tensor in metadata.get("inputs", ()):
        datatype = str(tensor["datatype"])
        if datatype in {"FP16", "BF16"}:
            raise UsageProblem(
                f"input {tensor['name']} of model {model} is {datatype}, which a request in JSON cannot carry",
                remedies=["give the request's bytes: --body-file=FILE --header='Inference-Header-Content-Length: N'"],
            )
        shape = [max(int(each), 1) for each in tensor["shape"]]
        value: object = {"BYTES": "", "BOOL": False}.get(datatype, 0)
        data = [value] * prod(shape)
        inputs.append({"name": tensor["name"], "shape": shape, "datatype": datatype, "data": data})
    return SampleRequest("POST", f"{model_path(model)}/infer", json.dumps({"inputs": inputs}).encode(), _JSON)


def model_path(model: str) -> str:
    """Where Triton tells of a model."""
    return f"/v2/models/{quote(model, safe='')}"


@dataclass(frozen=True)
class SampleExchange:
    """A request, the body of its answer, and whether a second answer is the same."""

    question: SampleRequest
    body: bytes
    repeats: bool


def ask(
    app: RecognisedApp, given: RequestOptions, *, root: Path, log: Path, python: str | None, timeout: float
) -> SampleExchange:
    """Start an app, ask it, and end it.

    Raises:
        UsageProblem: It cannot be described as a server, or the request is none.
        ServerFailed: It does not start, or does not answer.
        Refused: It answers with an error.
    """
    try:
        handle = _describe(app, root=root, log=log, python=python, timeout=timeout)
        return _ask_triton(handle, given) if app.kind in {"triton", "pytriton"} else _ask(handle, app, given)
    except UsageProblem:
        raise
    except GpuserveError as problem:
        problem.remedies = (
            *problem.remedies,
            'say which request it answers: --method=POST --path=/predict --body=\'{"text": "a"}\'',
        )
        raise


def _describe(app: RecognisedApp, *, root: Path, log: Path, python: str | None, timeout: float) -> ServerHandle:
    def starter(
        seconds: float, kind: ServerKind, request: Ask, beside: Callable[[], None] | None = None
    ) -> AbstractContextManager[Instance]:
        return started(kind, request, environment={}, log=log, start_timeout_seconds=seconds, beside=beside)

    servers = ServerFactory(lambda seconds: partial(starter, seconds), str, root)
    if app.kind == "command":
        return servers.command(app.argv, cwd=app.place, python=python, start_timeout=timeout)
    if app.kind == "triton":
        return servers.triton(app.place, python=python, start_timeout=timeout)
    if app.kind == "pytriton":
        if not app.model:
            raise UsageProblem(f"{app.place} binds no model by a literal name", remedies=["--model=NAME"])
        return servers.pytriton(app.place, model=app.model, python=python, start_timeout=timeout)
    describe = servers.mosec if app.kind == "mosec" else servers.litserve
    return describe(app.place, python=python, start_timeout=timeout)


def _ask(handle: ServerHandle, app: RecognisedApp, given: RequestOptions) -> SampleExchange:
    question = given.over(default_question(app))
    target = _target(handle, question)
    with target.started() as running:
        return _answer(target, question, running)


def _ask_triton(handle: ServerHandle, given: RequestOptions) -> SampleExchange:
    with handle.get("/v2/health/ready").started() as running:
        # A server of several models, none of which is an ensemble, has no default.
        model = handle.kind.default_model or choose_roles(read_configs(running.site), model=None, asked=None).asked
        if given.body is None:
            default = triton_question(model, ask_triton(running.site, model_path(model)))
        else:
            default = SampleRequest("POST", f"{model_path(model)}/infer")
        question = given.over(default)
        return _answer(_target(handle, question), question, running)


def _target(handle: ServerHandle, question: SampleRequest) -> Target:
    return handle.request(question.method, question.path, body=question.body, headers=question.headers)


def _answer(target: Target, question: SampleRequest, running: Instance) -> SampleExchange:
    body = target.ask(running).body
    return SampleExchange(question, body, repeats=target.ask(running).body == body)
