"""A command in another checkout, or with another interpreter, is another server or is refused."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.builds.relocation import Relocation
from pytest_gpuserve.errors import NotInRevision
from pytest_gpuserve.servers.base import Site
from pytest_gpuserve.servers.command import CommandServer
from tests.support.plain_git import git, only_below

if TYPE_CHECKING:
    from pathlib import Path

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
