"""A real Triton that is named by its program, as in the vendor's container image."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pytest_gpuserve.process.ready import Ask
from pytest_gpuserve.servers.base import Site
from pytest_gpuserve.servers.triton import Triton
from pytest_gpuserve.servers.triton_install import find_triton
from tests.servers.deployments import Starts, counted
from tests.servers.triton_server import CONFIG, MODEL, START_SECONDS, triton_python, write_model

if TYPE_CHECKING:
    from pathlib import Path


def test_a_named_triton_serves_with_its_own_backends(tmp_path: Path) -> None:
    """The program gets ports and repository, but no backends and no libraries; it counts, and leaves no process."""
    install = find_triton(triton_python())
    backends = install.write_backends(Site(tmp_path), searched="")
    variables = install.environment({"PATH": "/usr/bin:/bin"}, install.library.parent)
    given = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    program = tmp_path / "tritonserver"
    program.write_text(f'#!/bin/sh\nexec env {given} {install.server} --backend-directory={backends} "$@"\n')
    program.chmod(0o755)
    write_model(tmp_path / "models", CONFIG, {"model.py": MODEL})
    kind = Triton(tmp_path / "models", "models", python="/no/python", server=str(program))
    assert kind.information()["program"] == str(program)
    with Starts(tmp_path / "log", START_SECONDS).start(kind, Ask("GET", "/v2", b"", {})) as instance:
        assert counted(instance).items == 0
        assert instance.settings["echo.max_batch_size"].used == "8"
        assert instance.process is not None
        tree = instance.process.tree()
        assert len(tree) > 1
    assert not any(member.is_running() for member in tree)
