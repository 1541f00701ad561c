"""The kind of an app, by its source, and its request, by its kind or by the schema that an ASGI app tells."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.new.app import App, recognise, recognise_command, suite_name, triton_request
from pytest_gpuserve.new.openapi import example, request_of, told_request

FAKES = Path(__file__).parents[1] / "fakes"


def test_an_app_is_recognised_by_its_imports(tmp_path: Path) -> None:
    """The library is known by its import, and pytriton's model if a literal names it."""
    for kind in ("mosec", "litserve", "pytriton"):
        assert recognise(FAKES / "doubling" / f"{kind}_app.py").kind == kind
    app = tmp_path / "app.py"
    for call, model in (("bind(model_name='a')", "a"), ("bind('b', f)", "b"), ("bind(model_name=c)", "")):
        app.write_text(f"import pytriton\ntriton.{call}\n")
        assert recognise(app).model == model


def test_a_repository_is_recognised_by_its_configurations(tmp_path: Path) -> None:
    """A folder of models is Triton's, any other folder is refused."""
    (tmp_path / "Models-1" / "double").mkdir(parents=True)
    (tmp_path / "Models-1" / "double" / "config.pbtxt").touch()
    found = recognise(tmp_path / "Models-1")
    assert (found.kind, found.name) == ("triton", "models_1")
    with pytest.raises(UsageProblem, match="not a model repository"):
        recognise(tmp_path)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import flask", "none of"),
        ("import os, mosec\nfrom litserve import x", "litserve and mosec"),
        ("from . import mosec", "none of"),
    ],
)
def test_what_is_not_recognised_is_started_by_its_command(tmp_path: Path, source: str, found: str) -> None:
    """The error says what was found, and how to start the app nevertheless."""
    app = tmp_path / "app.py"
    app.write_text(source)
    with pytest.raises(UsageProblem) as raised:
        recognise(app)
    assert found in raised.value.found
    assert "-- python app.py --port={port}" in raised.value.remedies[0]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import fastapi\nservice: FastAPI = fastapi.FastAPI(title='x')\n", "service"),
        ("from starlette.applications import Starlette\napp = Starlette()\n", "app"),
    ],
)
def test_an_asgi_app_is_started_by_uvicorn(tmp_path: Path, source: str, name: str) -> None:
    """A module of a package is imported from the folder above it, and a command of uvicorn's names the same app."""
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    for folder, module, suite in ((tmp_path, "main", "main"), (tmp_path / "pack", "pack.main", "pack_main")):
        (folder / "main.py").write_text(source)
        app = recognise(folder / "main.py")
        command = ("{python}", "-m", "uvicorn", f"{module}:{name}", "--port={port}")
        assert app == App("command", suite, tmp_path, argv=command, target=f"{module}:{name}")
        assert recognise_command(["python", *command[1:]], tmp_path) == app


def test_a_commands_python_is_that_of_the_tests() -> None:
    """A virtual environment need not be on the PATH where the suite runs; a suite is named like the script."""
    app = recognise_command(["python3", "my app.py", "--port={port}"], Path("/x"))
    assert (app.argv[0], app.name) == ("{python}", "my_app")
    assert recognise_command(["./server", "a:b", "{port}"], Path("/x")) == App(
        "command", "server", Path("/x"), argv=("./server", "a:b", "{port}")
    )


@pytest.mark.parametrize(("text", "name"), [("a-B.c", "a_b_c"), ("3d", "app_3d"), ("class", "app_class"), ("é", "app")])
def test_a_suites_name_is_an_identifier(text: str, name: str) -> None:
    """It is a folder's, a file's and a function's."""
    assert suite_name(text) == name


def test_a_request_for_triton_is_of_the_models_shapes() -> None:
    """Names, types and shapes are what the model says of itself; free dimensions, and the batch, are 1."""
    told = [
        {"name": "X", "datatype": "FP32", "shape": [-1, -1, 2]},
        {"name": "S", "datatype": "BYTES", "shape": [1]},
        {"name": "B", "datatype": "BOOL", "shape": [1]},
    ]
    asked = triton_request("/v2/models/m", {"inputs": told})
    assert asked.path == "/v2/models/m/infer"
    assert json.loads(asked.body)["inputs"] == [
        {"name": "X", "shape": [1, 1, 2], "datatype": "FP32", "data": [0, 0]},
        {"name": "S", "shape": [1], "datatype": "BYTES", "data": [""]},
        {"name": "B", "shape": [1], "datatype": "BOOL", "data": [False]},
    ]
    with pytest.raises(UsageProblem, match="FP16"):
        triton_request("/v2/models/m", {"inputs": [{"name": "X", "datatype": "FP16", "shape": [1]}]})


# -- the request that an ASGI app tells


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
