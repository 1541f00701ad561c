"""Triton by `image=`: in a container of an engine that works here, with the wheel's server inside."""

from __future__ import annotations

import io
import subprocess
import tarfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process.container_engine import Engine, find_engine
from pytest_gpuserve.servers.base import Ask, Site
from pytest_gpuserve.servers.instance import started
from pytest_gpuserve.servers.triton import Triton
from pytest_gpuserve.servers.triton_config import write_model
from pytest_gpuserve.servers.triton_install import find_triton
from tests.servers.test_container_life import READ_ONLY, bare_image
from tests.servers.triton_server import CONFIG, MODEL, START_SECONDS, triton_python

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=4000:4000")
"""Where limits cannot be raised, podman must not try to."""

LAUNCHER = """#!/bin/sh
export PATH="{PATH}" LD_LIBRARY_PATH="{LD_LIBRARY_PATH}"
exec {server} --backend-directory={backends} "$@"
"""


@pytest.fixture
def engine() -> Engine:
    """An engine that works here."""
    try:
        return find_engine(options=LIMITS)
    except ServerFailed as problem:
        pytest.skip(str(problem))


@pytest.fixture
def image(engine: Engine) -> Iterator[str]:
    """An image with nothing but mount points."""
    name = f"gpuserve-test-{uuid.uuid4().hex[:12]}"
    packed = io.BytesIO(bare_image())
    with tarfile.open(fileobj=packed, mode="a") as archive:
        folder = tarfile.TarInfo("models")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
    argv = [*engine.command, "import", "-", name]
    done = subprocess.run(argv, check=False, input=packed.getvalue(), capture_output=True)
    if done.returncode:
        pytest.skip(f"{engine} cannot make an image: {done.stderr.decode(errors='replace')}")
    try:
        yield name
    finally:
        subprocess.run([*engine.command, "rmi", "--force", name], check=True, capture_output=True)


def test_a_container_serves_the_repository(engine: Engine, image: str, tmp_path: Path) -> None:
    """The image's `tritonserver` gets the repository read-only, is found to own its ports, counts, and is gone."""
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
    write_model(tmp_path / "models", CONFIG, {"model.py": MODEL})
    kind = Triton(
        tmp_path / "models",
        "models",
        image=image,
        engine=engine.command,
        engine_options=(*LIMITS, *mounts, f"--env=PATH={launcher.parent}:/usr/bin:/bin"),
    )
    ask = Ask("GET", "/v2/models/echo/ready", b"", {})
    with started(kind, ask, environment={}, log=tmp_path / "log", start_timeout_seconds=START_SECONDS) as instance:
        counters = instance.counters()
        assert counters is not None
        assert (counters.items, list(counters.parts)) == (0, ["echo"])
        assert instance.settings["echo.max_batch_size"].used == "8"
        assert kind.information()["image"].startswith(image)
    listed = subprocess.run([*engine.command, "ps", "--all"], check=True, capture_output=True, text=True).stdout
    assert image not in listed
