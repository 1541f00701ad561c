"""What an app is, by its source alone, and what it answers when it is started once."""

from __future__ import annotations

import json
import keyword
import re
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.plugin.server_factory import ServerFactory
from pytest_gpuserve.servers.instance import started
from pytest_gpuserve.servers.triton_api import ask_triton, choose_roles, read_configs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuserve.experiment.handle import ServerHandle
    from pytest_gpuserve.servers.base import Ask, ServerKind
    from pytest_gpuserve.servers.instance import Instance

COMMAND: Final = "python -m pytest_gpuserve.new"

_IMPORTS: Final = re.compile(r"^\s*(?:import\s+(?:[\w.]+\s*,\s*)*|from\s+)(mosec|litserve|pytriton)\b", re.MULTILINE)
_ASGI: Final = re.compile(r"^(\w+)\s*(?::\s*[\w.]+\s*)?=\s*(?:\w+\.)?(FastAPI|Starlette)\(", re.MULTILINE)
_BOUND: Final = re.compile(r"""\.bind\(\s*(?:model_name\s*=\s*)?["']([^"']+)["']""")
_JSON: Final = {"Content-Type": "application/json"}
_FIRST: Final = {
    "mosec": Request("POST", "/inference", b'{"input": 1.0}', _JSON),
    "litserve": Request("POST", "/predict", b'{"input": 1.0}', _JSON),
    "command": Request("GET", "/"),
}


@dataclass(frozen=True)
class App:
    """An app by the kind of its server.

    Args:
        kind: The fixture's name without ``_server``.
        name: Name of the suite.
        place: Its file or folder; of a command the folder in which it runs.
        argv: The command.
        model: The model that pytriton binds.
        schema: Path of an OpenAPI schema, which tells the request.
    """

    kind: str
    name: str
    place: Path
    argv: tuple[str, ...] = ()
    model: str = ""
    schema: str = ""


def recognise(place: Path) -> App:
    """Recognise an app by its file, or a model repository by its folder. Raises UsageProblem for anything else."""
    if place.is_dir():
        if any(place.glob("*/config.pbtxt")):
            return App("triton", suite_name(place.name), place)
        raise UsageProblem(f"{place} is not a model repository", found="it has no */config.pbtxt")
    if not place.is_file():
        raise UsageProblem(f"there is no app {place}", remedies=["name a file or a model repository"])
    source = place.read_text(errors="replace")
    kinds = sorted({*_IMPORTS.findall(source)})
    asgi = _ASGI.search(source)
    if not kinds and asgi:
        argv = ("{python}", "-m", "uvicorn", f"{place.stem}:{asgi[1]}", "--port={port}")
        schema = "/openapi.json" if asgi[2] == "FastAPI" else ""
        return App("command", suite_name(place.stem), place.parent, argv=argv, schema=schema)
    if len(kinds) != 1:
        raise UsageProblem(
            f"the kind of server in {place} is not recognised",
            found=f"it imports {' and '.join(kinds) or 'none of mosec, litserve, pytriton, fastapi, starlette'}",
            remedies=[f"start any server by its command: {COMMAND} -- python {place.name} --port={{port}}"],
        )
    model = _BOUND.search(source)
    return App(kinds[0], suite_name(place.stem), place, model=model[1] if model else "")


def recognise_command(argv: Sequence[str], folder: Path) -> App:
    """Take a command for a server; its Python is the interpreter of the tests."""
    words = list(argv)
    script = next((word for word in words if word.endswith(".py")), words[0])
    if re.fullmatch(r"python(3(\.\d+)?)?", words[0]):
        words[0] = "{python}"
    return App("command", suite_name(Path(script).stem), folder, argv=tuple(words))


def suite_name(text: str) -> str:
    """A name that is one in Python, and a file's."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"app_{name}".rstrip("_")


@dataclass(frozen=True)
class Exchange:
    """A request, the body of its answer, and whether a second answer is the same."""

    request: Request
    body: bytes
    repeats: bool


def ask(app: App, given: Callable[[Request], Request], *, log: Path, python: str | None, timeout: float) -> Exchange:
    """Start an app, ask it what ``given`` makes of the request that its kind suggests, and end it.

    Raises GpuserveError if it cannot be described as a server, does not start, or does not answer with 2xx.
    """
    try:
        handle = _describe(app, log=log, python=python, timeout=timeout)
        if app.kind in {"triton", "pytriton"}:
            with handle.get("/v2/health/ready").started() as running:
                # A server of several models, none of which is an ensemble, has no default.
                roles = partial(choose_roles, read_configs(running.site), model=None, asked=None)
                model = f"/v2/models/{quote(handle.kind.default_model or roles().asked, safe='')}"
                return _exchange(handle, given(triton_request(model, ask_triton(running.site, model))), running)
        if app.schema:
            with handle.get(app.schema).started() as running:
                schema = json.loads(handle.get(app.schema).ask(running).body)
                return _exchange(handle, given(openapi_request(schema)), running)
        request = given(_FIRST[app.kind])
        with handle.request(request.method, request.path, body=request.body, headers=request.headers).started() as up:
            return _exchange(handle, request, up)
    except UsageProblem:
        raise
    except GpuserveError as problem:
        problem.remedies += ('say which request it answers: --method=POST --path=/predict --body=\'{"text": "a"}\'',)
        raise


def triton_request(model: str, metadata: Mapping[str, Any]) -> Request:
    """A request with the names, types and shapes that a model declares; free dimensions are 1, values 0."""
    inputs = []
    for tensor in metadata.get("inputs", ()):
        datatype = str(tensor["datatype"])
        if datatype in {"FP16", "BF16"}:
            help_ = ["give the request's bytes: --body=@FILE --header='Inference-Header-Content-Length: N'"]
            raise UsageProblem(f"input {tensor['name']} is {datatype}, which JSON cannot carry", remedies=help_)
        shape = [max(int(each), 1) for each in tensor["shape"]]
        value: object = {"BYTES": "", "BOOL": False}.get(datatype, 0)
        inputs.append({"name": tensor["name"], "shape": shape, "datatype": datatype, "data": [value] * prod(shape)})
    return Request("POST", f"{model}/infer", json.dumps({"inputs": inputs}).encode(), _JSON)


def openapi_request(schema: Mapping[str, Any]) -> Request:
    """The first POST of an OpenAPI schema whose body is JSON, with values that its types allow; else ``GET /``."""
    for path, operations in schema["paths"].items():
        body = operations.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json")
        if body and "{" not in path:
            return Request("POST", path, json.dumps(_value(body["schema"], schema, depth=0)).encode(), _JSON)
    return _FIRST["command"]


_DEEPEST: Final = 8  # of a schema that contains itself
_SIMPLE: Final = {"string": "a", "integer": 1, "number": 1.0, "boolean": True}


def _value(part: Mapping[str, Any], schema: Mapping[str, Any], *, depth: int) -> object:
    """A value that a part of a schema allows; of an object the required fields."""
    inner = partial(_value, schema=schema, depth=depth + 1)
    if "$ref" in part and depth < _DEEPEST:
        return inner(schema["components"]["schemas"][part["$ref"].rpartition("/")[2]])
    for told in (part.get("examples"), part.get("enum"), [part["default"]] if "default" in part else None):
        if told:
            return told[0]
    for several in {"anyOf", "oneOf", "allOf"} & part.keys():
        return inner(part[several][0])
    if part.get("type") == "array":
        return [inner(part.get("items", {}))]
    if part.get("type") == "object":
        required = part.get("required", ())
        return {name: inner(field) for name, field in part.get("properties", {}).items() if name in required}
    return _SIMPLE.get(part.get("type", ""))


def _exchange(handle: ServerHandle, request: Request, running: Instance) -> Exchange:
    target = handle.request(request.method, request.path, body=request.body, headers=request.headers)
    body = target.ask(running).body
    return Exchange(request, body, repeats=target.ask(running).body == body)


def _describe(app: App, *, log: Path, python: str | None, timeout: float) -> ServerHandle:
    def starter(
        seconds: float, kind: ServerKind, request: Ask, beside: Callable[[], None] | None = None
    ) -> AbstractContextManager[Instance]:
        return started(kind, request, environment={}, log=log, start_timeout_seconds=seconds, beside=beside)

    servers = ServerFactory(lambda seconds: partial(starter, seconds), str)
    if app.kind == "command":
        return servers.command(app.argv, cwd=app.place, python=python, start_timeout=timeout)
    if app.kind == "pytriton":
        if not app.model:
            raise UsageProblem(f"{app.place} binds no model by a literal name", remedies=["--model=NAME"])
        return servers.pytriton(app.place, model=app.model, python=python, start_timeout=timeout)
    describe: Any = {"mosec": servers.mosec, "litserve": servers.litserve, "triton": servers.triton}[app.kind]
    handle: ServerHandle = describe(app.place, python=python, start_timeout=timeout)
    return handle
