"""The request that an ASGI app tells: schemas are made by a real FastAPI, and bodies are taken by its models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_gpuserve.new.openapi import example, request_of, told_request

FAKES = Path(__file__).parents[1] / "fakes"


def told(folder: Path, source: str, *, path: str | None = None, timeout: float = 60.0) -> str:
    """The request for an app with this source, as text, or the reason why none is known."""
    (folder / "main.py").write_text(source)
    log = folder / "import.log"
    request, reason = told_request("main:app", path, folder, python=sys.executable, log=log, timeout=timeout)
    return f"{request.method} {request.path} {request.body.decode()}".strip() if request else reason


def test_fastapi_accepts_the_body_that_its_schema_tells(tmp_path: Path) -> None:
    """The body has a field of each kind. Operations with required parameters are passed over; no schema is served."""
    pytest.importorskip("fastapi")
    log = tmp_path / "import.log"
    request, reason = told_request("fastapi_app:app", None, FAKES, python=sys.executable, log=log, timeout=60.0)
    assert request is not None, reason
    assert (request.method, request.path) == ("POST", "/predict")
    from tests.fakes.fastapi_app import Question

    question = Question.model_validate_json(request.body)
    assert (question.text, question.known, question.tags, question.optional) == ("aaa", "a fox", ["a", "a"], 3)
    assert (question.node.children, question.node.next) == ([], None)


def operation(kind: str = "application/json", **media: object) -> dict[str, Any]:
    """A POST with a body."""
    return {"post": {"requestBody": {"content": {kind: media}}}}


REQUIRED = {"parameters": [{"name": "key", "in": "query", "required": True}]}
OPTIONAL = {"parameters": [{"name": "key", "in": "query", "required": False}]}


@pytest.mark.parametrize(
    ("paths", "wanted"),
    [
        ({"/get": {"get": {}}, "/post": operation(schema={"type": "string"})}, 'POST /post "a"'),
        (
            {"/a/{id}": {"get": {}}, "/b": {"get": REQUIRED}, "/c": {"get": {}, **REQUIRED}, "/d": {"get": OPTIONAL}},
            "GET /d",
        ),
        ({"/post": {"post": {}}, "/get": {"get": {}}}, "GET /get"),
        ({"/form": operation("multipart/form-data"), "/post": {"post": {}}}, "POST /post"),
        ({"/form": operation("application/x-www-form-urlencoded"), "/put": {"put": {}}}, None),
        ({"/x": operation("application/vnd.x+json", schema={"type": "string"}, example="b")}, 'POST /x "b"'),
        ({"/x": operation(schema={}, examples={"first": {"value": [1]}, "second": {"value": 2}})}, "POST /x [1]"),
        ({}, None),
    ],
)
def test_the_request_is_the_first_json_post_else_a_get(paths: dict[str, Any], wanted: str | None) -> None:
    """Operations with required parameters or a form are left out."""
    request = request_of({"paths": paths})
    assert (request and f"{request.method} {request.path} {request.body.decode()}".strip()) == wanted


def test_a_named_path_is_the_only_one_that_counts() -> None:
    """Its own body is sent; a path that the schema does not have tells nothing."""
    schema = {"paths": {"/a": operation(example=1), "/b": operation(example=2)}}
    request = request_of(schema, "/b")
    assert request is not None
    assert (request.path, request.body) == ("/b", b"2")
    assert request_of(schema, "/c") is None


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer", "default": 7, "examples": [8]}, 8),
        ({"type": "boolean", "default": False}, False),
        ({"type": ["integer", "null"], "maximum": 1}, 1),
        (
            {"allOf": [{"$ref": "#/components/schemas/A"}, {"type": "object", "properties": {"b": {"const": 2}}}]},
            {"a": 1, "b": 2},
        ),
        ({"$ref": "#/components/schemas/Unknown"}, None),
        ({"$ref": "#/components/schemas/Endless"}, {"it": {"it": None}}),
    ],
)
def test_a_value_is_the_one_that_is_told_else_a_small_one(schema: dict[str, Any], value: object) -> None:
    """A schema that nothing can satisfy ends, too."""
    schemas = {
        "A": {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}},
        "Endless": {
            "type": "object",
            "required": ["it"],
            "properties": {"it": {"$ref": "#/components/schemas/Endless"}},
        },
    }
    assert example(schema, schemas) == value


STARLETTE = """
from starlette.applications import Starlette
from starlette.routing import Mount, Route, WebSocketRoute
async def answer(request):
    ...
async def talk(socket):
    ...
app = Starlette(routes=[Mount("/static", Starlette()), WebSocketRoute("/talk", talk),
    Route("/item/{id:int}", answer), Route("/predict", answer, methods=["POST"])])
"""


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (STARLETTE, "POST /predict"),
        (
            "print('{}')\nimport no_such_package",
            "main:app could not be imported: ModuleNotFoundError: No module named 'no_such_package'",
        ),
        ("application = None", "main:app could not be imported: AttributeError: module 'main' has no attribute 'app'"),
        ("app = print", "AttributeError"),
        ("class app:\n    openapi = lambda: {'paths': []}", "the schema of main:app is not one of OpenAPI"),
        ("import os; os._exit(0)", "main:app could not be imported: exit code 0"),
    ],
)
def test_an_app_without_a_schema_tells_its_routes_or_why_not(tmp_path: Path, source: str, wanted: str) -> None:
    """A failed import is a reason and no error."""
    if source == STARLETTE:
        pytest.importorskip("starlette")
    assert wanted in told(tmp_path, source)


def test_an_import_without_an_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """An import that does not end is killed with its children after the time limit."""
    source = "import subprocess\nopen('pid', 'w').write(str(subprocess.Popen(['sleep', '60']).pid))\nwhile True: pass\n"
    assert "could not be imported in 1.00 s" in told(tmp_path, source, timeout=1.0)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
