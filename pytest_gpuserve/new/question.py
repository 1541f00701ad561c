"""The one request that an app is asked: what the user gave, else what the app's kind suggests."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pytest_gpuserve.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.new.recognise import Recognised

_JSON: Final = {"Content-Type": "application/json"}
_PATHS: Final = {"mosec": "/inference", "litserve": "/predict", "command": "/"}


@dataclass(frozen=True)
class Question:
    """A request.

    Args:
        method: Of HTTP.
        path: Of HTTP.
        body: Of HTTP.
        headers: Of HTTP, beside what each request has.
    """

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Given:
    """What the user says of the request; None leaves it to the app's kind."""

    method: str | None = None
    path: str | None = None
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def over(self, default: Question) -> Question:
        """What is asked: a body of the user's is not said to be JSON."""
        body = default.body if self.body is None else self.body
        is_json = self.body is None or self.body.lstrip()[:1] in {b"{", b"["}
        return Question(
            (self.method or ("POST" if body else default.method)).upper(),
            self.path or default.path,
            body,
            {**(default.headers or _JSON if is_json and body else {}), **self.headers},
        )


def default_question(app: Recognised) -> Question:
    """What an app that is no Triton is asked: a number for each key that it reads."""
    path = _PATHS[app.kind]
    if app.kind == "command":
        return Question("GET", path)
    body = json.dumps(dict.fromkeys(app.keys or ("input",), 1.0)).encode()
    return Question("POST", path, body, _JSON)


def triton_question(model: str, metadata: Mapping[str, Any]) -> Question:
    """A request of the names, types and shapes that a model says of itself; free dimensions are 1, values 0.

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
    return Question("POST", f"{model_path(model)}/infer", json.dumps({"inputs": inputs}).encode(), _JSON)


def model_path(model: str) -> str:
    """Where Triton tells of a model."""
    return f"/v2/models/{quote(model, safe='')}"
