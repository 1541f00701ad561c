"""Request for an ASGI app, made from its OpenAPI schema or, without one, from its routes."""

from __future__ import annotations

import json
import math
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.builds.interpreter import PREPARE
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.process.child import Command, Process
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_SCRIPT: Final = """
import importlib, os
sys.path.insert(0, "")
target, answer = sys.argv[1:]
module, _, name = target.partition(":")
try:
    app = getattr(importlib.import_module(module), name)
    if hasattr(app, "openapi"):
        schema = app.openapi()
    else:
        routes = [route for route in app.routes if getattr(route, "methods", None)]
        schema = {"paths": {route.path: {method.lower(): {} for method in route.methods} for route in routes}}
    text = json.dumps(schema)
    with open(answer, "w") as file:
        file.write(text)
except BaseException as problem:
    print(f"{type(problem).__name__}: {problem}".splitlines()[0], flush=True)
os._exit(0)  # even if threads of the app still run
"""


def told_request(
    target: str, path: str | None, folder: Path, *, python: str, log: Path, timeout: float
) -> tuple[Request | None, str]:
    """Import an app (``main:app``) as uvicorn would, in a process of its own, and read which request it answers.

    Args:
        target: The module and the name of the app.
        path: The only path to look at; None looks at all.
        folder: The working folder.
        python: The interpreter that has the app's packages.
        log: Where the output of the import goes; the answer goes beside it.
        timeout: Seconds for the import.

    Returns:
        The request, or None and the reason.
    """
    answer = log.with_name("schema.json")
    argv = (python, "-c", PREPARE + _SCRIPT, target, str(answer))
    with Process.start(Command(argv, dict(os.environ), folder, log)) as process:
        if process.wait(timeout) is None:
            return None, f"{target} could not be imported in {format_seconds(timeout)}"
        if not answer.is_file():
            return None, f"{target} could not be imported: {process.tail(1) or process.describe_exit()}"
    try:
        request = request_of(json.loads(answer.read_bytes()), path)
    except (AttributeError, LookupError, TypeError, ValueError) as problem:
        return None, f"the schema of {target} is not one of OpenAPI: {problem}"
    return request, "" if request or path else f"{target} has no request without parameters or a form"


def request_of(schema: Mapping[str, Any], path: str | None = None) -> Request | None:
    """The first POST of a JSON body, else the first GET, else the first POST without a body.

    An operation with a required parameter is left out, because a schema does not tell which values exist.
    """
    operations = [
        (method, place, operation)
        for place, item in schema.get("paths", {}).items()
        for method, operation in item.items()
        if method in {"get", "post"} and "{" not in place and path in {None, place}
        if not any(each.get("required") for each in (*item.get("parameters", ()), *operation.get("parameters", ())))
    ]
    schemas = schema.get("components", {}).get("schemas", {})
    for method, place, operation in operations:
        for kind, media in operation.get("requestBody", {}).get("content", {}).items():
            if method == "post" and "json" in kind:
                named = [each.get("value") for each in media.get("examples", {}).values()]
                told = {"example": media["example"]} if "example" in media else {"examples": named} if named else {}
                body = example({**media.get("schema", {}), **told}, schemas)
                return Request("POST", place, json.dumps(body).encode(), {"Content-Type": kind})
    bodiless = (each for each in sorted(operations, key=lambda each: each[0]) if "requestBody" not in each[2])
    return next((Request(method.upper(), place) for method, place, _ in bodiless), None)


_FORMATS: Final = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "email": "a@example.com",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def example(part: Mapping[str, Any], schemas: Mapping[str, Any], inside: tuple[str, ...] = ()) -> object:
    """Return a value that a JSON schema allows: its example, else a small value with the required fields.

    A schema that contains itself ends at a list or a choice; ``inside`` has the references that led here.
    """
    inner = partial(example, schemas=schemas, inside=inside)
    told = {**part, **{key: [part[key]] for key in ("example", "default", "const") if key in part}}
    for key in ("example", "examples", "default", "enum", "const"):
        if isinstance(told.get(key), list) and told[key]:
            return told[key][0]
    if reference := part.get("$ref"):
        named = schemas.get(reference.rpartition("/")[2], {})
        return None if inside.count(reference) > 1 else example(named, schemas, (*inside, reference))
    if choices := part.get("anyOf") or part.get("oneOf"):
        return inner(next((each for each in choices if each.get("$ref") not in inside), choices[0]))
    if parts := [inner(each) for each in part.get("allOf", ())]:
        objects = [each for each in parts if isinstance(each, dict)]
        return {name: value for each in objects for name, value in each.items()} if objects else parts[0]
    return _of_type(part, inner, inside)


def _of_type(part: Mapping[str, Any], inner: Callable[[Mapping[str, Any]], object], inside: tuple[str, ...]) -> object:
    kind = part.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        fields, required = part.get("properties", {}), part.get("required", ())
        # A constant tells which choice of several an object is.
        return {name: inner(field) for name, field in fields.items() if name in required or "const" in field}
    if kind == "array":
        items = part.get("prefixItems") or [part.get("items", {})] * max(part.get("minItems", 1), 1)
        return [inner(each) for each in items if each.get("$ref") not in inside]
    if kind in {"integer", "number"}:
        low = part.get("minimum", part.get("exclusiveMinimum", 0))
        middle = (low + part.get("maximum", part.get("exclusiveMaximum", low + 2))) / 2
        return math.ceil(middle) if kind == "integer" else middle
    if kind == "string":
        return _FORMATS.get(part.get("format", ""), "a" * max(part.get("minLength", 1), 1))
    return True if kind == "boolean" else None
