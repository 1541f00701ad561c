"""Triton by `image=`: in a container of an engine that works here, with the wheel's server inside."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process.container_engine import find_engine
from pytest_gpuserve.servers.base import Ask, Site
from pytest_gpuserve.servers.instance import started
from pytest_gpuserve.servers.triton import Triton
from pytest_gpuserve.servers.triton_config import write_model
from pytest_gpuserve.servers.triton_install import find_triton
from tests.servers.test_container_life import READ_ONLY, imported
from tests.servers.triton_server import CONFIG, MODEL, START_SECONDS, triton_python

LIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=4000:4000")
"""Where limits cannot be raised, podman must not try to."""

LAUNCHER = """#!/bin/sh
export PATH="{PATH}" LD_LIBRARY_PATH="{LD_LIBRARY_PATH}"
exec {server} --backend-directory={backends} "$@"
"""


def test_a_container_serves_the_repository(tmp_path: Path) -> None:
    """The image's `tritonserver` gets the repository read-only, is found to own its ports, counts, and is gone."""
    try:
        engine = find_engine(options=LIMITS)
    except ServerFailed as problem:
        pytest.skip(str(problem))
    python = triton_python()
    install = find_triton(python)
    launcher = tmp_path / "bin" / "tritonserver"
    launcher.parent.mkdir()
    backends = install.write_backends(Site(tmp_path), searched="")
    text = LAUNCHER.format(**install.environment({"PATH": "/usr/bin:/bin"}), server=install.server, backends=backends)
    launcher.write_text(text)
    launcher.chmod(0o755)
    places = [*READ_ONLY, launcher.parent, backends, Path(python).parent.parent]
    mounts = [f"--mount=type=bind,source={place},target={place},readonly" for place in places]
    options = (*LIMITS, *mounts, f"--env=PATH={launcher.parent}:/usr/bin:/bin")
    write_model(tmp_path / "models", CONFIG, {"model.py": MODEL})
    ask = Ask("GET", "/v2/models/echo/ready", b"", {})
    with imported(engine, "models") as image:
        kind = Triton(tmp_path / "models", "models", image=image, engine=engine.command, engine_options=options)
        with started(kind, ask, environment={}, log=tmp_path / "log", start_timeout_seconds=START_SECONDS) as instance:
            counters = instance.counters()
            assert counters is not None
            assert (counters.items, list(counters.parts)) == (0, ["echo"])
            assert instance.settings["echo.max_batch_size"].used == "8"
            assert kind.information()["image"].startswith(image)
        listed = subprocess.run([*engine.command, "ps", "--all"], check=True, capture_output=True, text=True).stdout
        assert image not in listed
