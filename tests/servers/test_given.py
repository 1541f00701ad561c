"""Arguments of the server fixtures: wrong ones are told before anything is started; a command has another side."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuserve.builds.relocation import Relocation
from pytest_gpuserve.errors import NotInRevision, UsageProblem
from pytest_gpuserve.servers.base import Site
from pytest_gpuserve.servers.command import CommandServer
from pytest_gpuserve.servers.mosec import Mosec
from pytest_gpuserve.servers.torch_worker import TorchWorker
from tests.servers.deployments import FACTORY, UNTYPED
from tests.support.plain_git import git, only_below

APP = "../fakes/mosec_app.py"
COMMAND = ["./server", "--port={port}"]
SECRET = "hf_abcdefghijkl"


@pytest.mark.parametrize(
    ("fixture", "arguments", "words"),
    [
        ("mosec", {"args": "--debug --level=2"}, "['--debug', '--level=2']"),
        ("mosec", {"args": ["--level", 2]}, "found: 2"),
        ("mosec", {"args": 2}, "a int"),
        ("mosec", {"env": {"OMP_NUM_THREADS": 1}}, "'OMP_NUM_THREADS' is not text"),
        ("mosec", {"env": {"A=B": "1"}}, "'A=B' is not a valid name"),
        ("mosec", {"env": ["A=B"]}, "takes a dict"),
        ("mosec", {"start_timeout": 0}, "above 0, not 0"),
        ("mosec", {"start_timeout": float("nan")}, "above 0, not nan"),
        ("mosec", {"start_timeout": True}, "above 0, not True"),
        ("mosec", {"sizes": [1, 2]}, '"--sizes"'),
        ("mosec", {"port": 8000}, "sets port itself"),
        ("mosec", {"args": ["--port", "8000"]}, "sets port itself"),
        ("mosec", {"python": "no-such-python"}, "python=no-such-python is not a Python"),
        ("mosec", {"python": "venv/bin/python"}, str(Path(__file__).parent / "venv/bin/python")),
        ("command", {"argv": "./server --port={port}"}, "['./server', '--port={port}']"),
        ("command", {"argv": f"./server --port={{port}} --token={SECRET}"}, "--token=..."),
        ("command", {"argv": []}, "command_server(["),
        ("command", {"argv": ["./server", "--port", 8000]}, "found: 8000"),
        ("command", {"argv": ["./server", "--port=8000"]}, "--port={port}"),
        ("command", {"counters": {"items": "a", "batches": "b"}}, "takes MetricNames"),
        ("command", {"counters": "vlm"}, "'vllm'"),
        ("command", {"ready": "health"}, 'ready="/health"'),
        ("command", {"cwd": "nowhere"}, "nowhere does not exist"),
        ("remote", {"url": "127.0.0.1:8000"}, "help: http://HOST:PORT"),
        ("remote", {"url": None}, "takes a URL as text, not a NoneType"),
        *(("remote", {"url": url}, url) for url in ("http://h/path", "grpc://h:1/a/b", "nonsense")),
        ("remote", {"ca_file": "ca.pem"}, "only with TLS"),
        ("remote", {"grpc_port": "8001"}, "not '8001'"),
        ("remote", {"metrics_port": 1 << 16}, "not 65536"),
        *(("triton", {name: "docker"}, "a str") for name in ("models", "args")),
        ("torch_worker", {"args": ["--width=64"]}, "keyword arguments"),
        ("pytriton", {"model": ""}, "model= is empty"),
    ],
)
def test_what_cannot_be_an_argument_is_told(fixture: str, arguments: dict[str, Any], words: str) -> None:
    """The error names the fixture or argument and the right form, and repeats no secret of a command."""
    first: dict[str, dict[str, Any]] = {
        "mosec": {"app": APP},
        "command": {"argv": COMMAND},
        "remote": {"url": "http://h"},
        "triton": {"model_repository": Path(__file__).parent},
        "torch_worker": {"model": f"{APP}:make"},
        "pytriton": {"app": APP},
    }
    with pytest.raises(UsageProblem) as caught:
        getattr(UNTYPED, fixture)(**{**first[fixture], **arguments})
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


def test_an_interpreter_is_found_beside_the_test_file_or_along_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``python=`` ignores the working folder and the app's, and keeps a link of a virtual environment."""
    (tmp_path / "some-python").symlink_to(sys.executable)
    beside = os.path.relpath(tmp_path / "some-python", Path(__file__).parent)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path.parent)
    for given in (beside, Path(beside), "some-python"):
        kind = UNTYPED.mosec(APP, python=given).kind
        assert isinstance(kind, Mosec)
        assert kind.app.python == str(tmp_path / "some-python")


def test_a_path_is_an_argument_that_moves() -> None:
    """A path becomes text, which is found again in another checkout; so do the words of a command."""
    kind = UNTYPED.mosec(APP, weights=Path("/data/w.pt")).kind
    assert isinstance(kind, Mosec)
    assert kind.app.arguments == {"weights": "/data/w.pt"}
    command = UNTYPED.command([Path("bin/server"), "{port}"]).kind
    assert isinstance(command, CommandServer)
    assert command.argv == ("bin/server", "{port}")
    # A word that is no option does not set the port.
    FACTORY.mosec(APP, args=["--mode", "port"])


@pytest.mark.parametrize("measured", ["cuda", "cpu"])
def test_a_torch_worker_takes_the_device_that_is_measured(measured: str) -> None:
    """A torch worker computes on the measured device unless ``device=`` names another."""
    factory = replace(FACTORY, torch_device=measured)
    made = [factory.torch_worker(f"{APP}:make", device=device).kind for device in (None, "cuda:1")]
    assert [kind.device for kind in made if isinstance(kind, TorchWorker)] == [measured, "cuda:1"]


def test_secrets_of_a_server_are_in_no_baseline_and_no_traceback() -> None:
    """A handle's repr and its workload, which pytest and baselines show, contain no secret."""
    app = FACTORY.mosec(APP, env={"HF_TOKEN": SECRET}, api_key=SECRET)
    command = FACTORY.command([*COMMAND, "--api-key", SECRET], env={"HF_TOKEN": SECRET})
    for handle in (app, command):
        target = handle.post("/inference", headers={"Authorization": SECRET})
        shown = repr((handle, target, target.fingerprint(), handle.kind.workload()))
        assert SECRET not in shown
        assert handle.kind.name in repr(handle)
        assert "POST /inference" in repr(target)
    other = FACTORY.mosec(APP, env={"HF_TOKEN": SECRET}, api_key=f"{SECRET}2")
    assert other.kind.workload() != app.kind.workload()


def test_a_variable_of_another_encoding_counts() -> None:
    """A variable whose bytes are not valid in this locale is part of the workload too."""
    kinds = [FACTORY.command(COMMAND, env={"WEIGHTS": os.fsdecode(path)}).kind for path in (b"/d\xe4ta", b"/d\xe5ta")]
    assert kinds[0].workload() != kinds[1].workload()


def test_where_there_is_no_grpc_is_told() -> None:
    """A server without gRPC refuses ``grpc=True``, and the error names ``grpc_port=``."""
    for handle in (FACTORY.mosec(APP), FACTORY.remote("http://h")):
        with pytest.raises(UsageProblem, match="speaks no gRPC") as caught:
            handle.infer({"x": [[1.0]]}, model="m", grpc=True)
        assert "grpc_port=" in str(caught.value)


def test_what_is_no_kind_of_server_is_told() -> None:
    """An object that is not a kind of server is refused with the attributes that it lacks."""
    with pytest.raises(UsageProblem, match=r"str is not a kind of server\n  found: it lacks default_model, health"):
        FACTORY.deploy("serve app.py")  # type: ignore[arg-type]


# -- a command in another checkout, or with another interpreter

BUILT = "target/server"


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Relocation:
    """A checkout with a script, a built program and a virtual environment, and another that git made."""
    only_below(tmp_path, monkeypatch)
    here, there = tmp_path / "here", tmp_path / "there"
    for name in (".gitignore", "serve.sh", BUILT, ".venv/pyvenv.cfg", ".venv/bin/uvicorn"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("target/\n.venv/\n" if name == ".gitignore" else "")
    git(here, "init", "-q")
    git(here, "add", "-A")
    there.mkdir()
    (there / "serve.sh").touch()
    return Relocation(here, there, revision="main")


def command(sides: Relocation, *argv: str, python: str = sys.executable) -> CommandServer:
    """A command in the checkout's top folder."""
    return CommandServer((*argv, "--port={port}"), sides.checkout, "here", python)


def test_a_script_of_the_checkout_is_the_other_ones(sides: Relocation) -> None:
    """A script of the checkout is started in the other folder."""
    assert sides.worktree is not None
    one = command(sides, "./serve.sh")
    other = one.relocated(sides)
    assert other.launch(Site(sides.worktree, {"http": 8000})).cwd == sides.worktree


@pytest.mark.parametrize("absolute", [True, False])
def test_a_program_that_is_built_is_refused(sides: Relocation, *, absolute: bool) -> None:
    """Git does not have a built program, and this checkout's own in both builds would never be slower."""
    program = str(sides.checkout / BUILT) if absolute else BUILT
    with pytest.raises(NotInRevision, match=f"main has no {BUILT}") as caught:
        command(sides, program).relocated(sides)
    assert "script that builds" in str(caught.value)


def test_a_program_of_a_virtual_environment_is_shared(sides: Relocation) -> None:
    """A program of a virtual environment is shared; its working folder is the other checkout's."""
    other = command(sides, ".venv/bin/uvicorn", "app:app").relocated(sides)
    assert other.argv[0] == str(sides.checkout / ".venv/bin/uvicorn")
    assert other.cwd == sides.worktree


def test_another_interpreter_is_that_of_a_command_that_names_it(sides: Relocation) -> None:
    """``{python}`` in a command is the other interpreter; a command without it would be the same server."""
    assert sides.worktree is not None
    link = sides.worktree / "python"
    link.symlink_to(sys.executable)
    relocation = Relocation(sides.checkout, python=str(link), revision="its Python")
    other = command(sides, "{python}", "-m", "server").relocated(relocation)
    assert other.launch(Site(sides.worktree, {"http": 8000})).argv[0] == str(link)
    with pytest.raises(NotInRevision, match="would be the same in the other build") as caught:
        command(sides, "uvicorn", "app:app").relocated(relocation)
    assert "{python}" in str(caught.value)
    with pytest.raises(NotInRevision):
        command(sides, "{python}", "-m", "server", python="/usr/bin/python3").relocated(relocation)
