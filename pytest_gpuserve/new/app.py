"""An app's kind, from its source alone, and its answer to one request."""

from __future__ import annotations

import json
import keyword
import re
import sys
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pytest_gpuserve.errors import GpuserveError, ServerEnded, UsageProblem
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.new.openapi import told_request
from pytest_gpuserve.plugin.server_factory import ServerFactory
from pytest_gpuserve.servers.instance import started
from pytest_gpuserve.servers.triton_api import choose_roles, query_triton, read_configs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuserve.experiment.handle import ServerHandle
    from pytest_gpuserve.process.ready import Ask
    from pytest_gpuserve.servers.base import ServerKind
    from pytest_gpuserve.servers.instance import Instance

COMMAND: Final = "python -m pytest_gpuserve.new"

_IMPORTS: Final = re.compile(r"^\s*(?:import\s+(?:[\w.]+\s*,\s*)*|from\s+)(mosec|litserve|pytriton)\b", re.MULTILINE)
_ASGI: Final = re.compile(r"^(\w+)\s*(?::\s*[\w.]+\s*)?=\s*(?:\w+\.)?(?:FastAPI|Starlette)\(", re.MULTILINE)
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
        place: Its file or folder; for a command its working folder.
        argv: The command.
        model: The model that pytriton binds.
        target: The ASGI app that uvicorn imports, such as ``main:app``.
    """

    kind: str
    name: str
    place: Path
    argv: tuple[str, ...] = ()
    model: str = ""
    target: str = ""


def recognise(place: Path) -> App:
    """Recognise an app by its file, or a model repository by its folder. Raises UsageProblem for anything else."""
    if place.is_dir():
        if any(place.glob("*/config.pbtxt")):
            return App("triton", suite_name(place.name), place)
        raise UsageProblem(
            f"{place} is not a model repository",
            found="it has no */config.pbtxt",
            remedies=["name the folder that has one of MODEL/config.pbtxt for each model, or an app's file"],
        )
    if not place.is_file():
        raise UsageProblem(f"the app {place} does not exist", remedies=["name a file or a model repository"])
    source = place.read_text(errors="replace")
    kinds = sorted({*_IMPORTS.findall(source)})
    asgi = _ASGI.search(source)
    if not kinds and asgi:
        folder, module = place.parent, place.stem
        while (folder / "__init__.py").is_file():
            folder, module = folder.parent, f"{folder.name}.{module}"
        return recognise_command(["python", "-m", "uvicorn", f"{module}:{asgi[1]}", "--port={port}"], folder)
    if len(kinds) != 1:
        raise UsageProblem(
            f"the kind of server in {place} is not recognised",
            found=f"it imports {' and '.join(kinds) or 'none of mosec, litserve, pytriton, fastapi, starlette'}",
            remedies=[f"start any server by its command: {COMMAND} -- python {place.name} --port={{port}}"],
        )
    model = _BOUND.search(source)
    return App(kinds[0], suite_name(place.stem), place, model=model[1] if model else "")


def recognise_command(argv: Sequence[str], folder: Path) -> App:
    """Make an app of a command; the interpreter of the tests replaces its Python."""
    words = list(argv)
    target = next((word for word in words if "uvicorn" in words and re.fullmatch(r"[\w.]+:\w+", word)), "")
    script = next((word for word in words if word.endswith(".py")), words[0])
    if re.fullmatch(r"python(3(\.\d+)?)?", words[0]):
        words[0] = "{python}"
    name = suite_name(target.partition(":")[0] or Path(script).stem)
    return App("command", name, folder, argv=tuple(words), target=target)


def suite_name(text: str) -> str:
    """A name that is valid in Python and for a file."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"app_{name}".rstrip("_")


@dataclass(frozen=True)
class Exchange:
    """A request, the bodies of two answers, and why the app does not tell the request, which is a guess then."""

    request: Request
    answers: tuple[bytes, bytes]
    untold: str = ""


def ask(
    app: App, given: Callable[[Request], Request], path: str | None, *, log: Path, python: str | None, timeout: float
) -> Exchange:
    """Start an app, send it the request that ``given`` makes from the one for its kind, and end it.

    An ASGI app may suggest only ``path``. Raises GpuserveError if the app cannot be described as a
    server, does not start, or does not answer with 2xx.
    """
    suggested, untold = _FIRST.get(app.kind), ""
    try:
        handle = _describe(app, log=log, python=python, timeout=timeout)
        if suggested is None:
            with handle.get("/v2/health/ready").started() as running:
                # A server of several models without an ensemble has no default.
                roles = partial(choose_roles, read_configs(running.site), model=None, asked=None)
                model = f"/v2/models/{quote(handle.kind.default_model or roles().asked, safe='')}"
                metadata = query_triton(running.site, model, dict[str, Any])
                return _exchange(handle, given(triton_request(model, metadata)), running)
        if app.target:
            importing = partial(told_request, python=python or sys.executable, log=log.with_name("import.log"))
            told, untold = importing(app.target, path, app.place, timeout=timeout)
            suggested = told or suggested
        request = given(suggested)
        with handle.request(request.method, request.path, body=request.body, headers=request.headers).started() as up:
            return replace(_exchange(handle, request, up), untold=untold)
    except UsageProblem:
        raise
    except GpuserveError as problem:
        problem.looked += (untold,) if untold else ()
        problem.remedies = tuple(map(_as_option, problem.remedies))
        if not isinstance(problem, ServerEnded):
            problem.remedies += (
                'if it listens, say which request it answers: --method=POST --path=/predict --body=\'{"text": "a"}\'',
            )
        raise


def _as_option(remedy: str) -> str:
    """A remedy that names arguments of a fixture, with the options of this command."""
    remedy = re.sub(r"(?<![-\w])python=(\.\.\.)?", "--python=EXE", remedy)
    return re.sub(r"(?<![-\w])start_timeout=", "--start-timeout=", remedy)


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


def _exchange(handle: ServerHandle, request: Request, running: Instance) -> Exchange:
    target = handle.request(request.method, request.path, body=request.body, headers=request.headers)
    return Exchange(request, (target.ask(running).body, target.ask(running).body))


def _describe(app: App, *, log: Path, python: str | None, timeout: float) -> ServerHandle:
    def starter(
        kind: ServerKind, request: Ask, beside: Callable[[], None] | None = None
    ) -> AbstractContextManager[Instance]:
        return started(kind, request, environment={}, log=log, start_timeout_seconds=timeout, beside=beside)

    servers = ServerFactory(lambda _: starter, str)
    if app.kind == "pytriton" and not app.model:
        raise UsageProblem(f"{app.place} does not bind a model by a literal name", remedies=["--model=NAME"])
    more: Any = {"command": {"cwd": app.place}, "pytriton": {"model": app.model}}.get(app.kind, {})
    describe: Callable[..., ServerHandle] = getattr(servers, app.kind)
    return describe(app.argv or app.place, python=python, start_timeout=timeout, **more)
