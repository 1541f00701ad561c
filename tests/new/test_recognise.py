"""What an app is, by its source, and the request that its kind suggests: nothing is imported or started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.new.app import App, recognise, recognise_command, suite_name, triton_request

FAKES = Path(__file__).parents[1] / "fakes" / "doubling"


def test_an_app_is_recognised_by_its_imports(tmp_path: Path) -> None:
    """The library is known by its import, and pytriton's model if a literal names it."""
    for kind in ("mosec", "litserve", "pytriton"):
        assert recognise(FAKES / f"{kind}_app.py").kind == kind
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
