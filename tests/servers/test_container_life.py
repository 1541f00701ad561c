"""A real Triton in a real container, by the engine that works here."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process.container import find_engine
from pytest_gpuserve.servers.base import Ask, Site
from pytest_gpuserve.servers.triton import Triton
from pytest_gpuserve.servers.triton_install import find_triton
from tests.servers.deployments import Starts, counted
from tests.servers.triton_server import CONFIG, MODEL, START_SECONDS, triton_python, write_model

SYSTEM = [Path(f"/{name}") for name in ("bin", "lib", "lib64", "sbin")]
LIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=4000:4000")  # podman must not try to raise them


def bare_image() -> bytes:
    """An image with nothing but the places where parts of this machine are mounted: no registry is asked."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("usr", "proc", "sys", "dev", "etc", "tmp", "models"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        for path in filter(Path.is_symlink, SYSTEM):
            link = tarfile.TarInfo(path.name)
            link.type, link.linkname = tarfile.SYMTYPE, str(path.readlink())
            archive.addfile(link)
    return packed.getvalue()


def test_a_container_serves_the_repository(tmp_path: Path) -> None:
    """It gets the repository read-only, owns its ports, counts, ends when it is told to, and leaves nothing."""
    try:
        engine = find_engine(options=LIMITS)
    except ServerFailed as problem:
        pytest.skip(str(problem))
    install = find_triton(triton_python())
    launcher = tmp_path / "bin" / "tritonserver"
    launcher.parent.mkdir()
    backends = install.write_backends(Site(tmp_path), searched="")
    variables = " ".join(
        f'{name}="{value}"'
        for name, value in install.environment({"PATH": "/usr/bin:/bin"}, install.library.parent).items()
    )
    launcher.write_text(f'#!/bin/sh\nexec env {variables} {install.server} --backend-directory={backends} "$@"\n')
    launcher.chmod(0o755)
    system = [path for path in (Path("/usr"), *SYSTEM) if path.is_dir() and not path.is_symlink()]
    places = [*system, Path(sys.base_prefix), launcher.parent, backends, Path(install.python).parent.parent]
    mounts = [f"--mount=type=bind,source={place},target={place},readonly" for place in places]
    options = (*LIMITS, *mounts, f"--env=PATH={launcher.parent}:/usr/bin:/bin")
    write_model(tmp_path / "models", CONFIG, {"model.py": MODEL})
    image = f"gpuserve-test-{os.getpid()}"
    subprocess.run([*engine.command, "import", "-", image], check=True, input=bare_image(), capture_output=True)
    try:
        kind = Triton(tmp_path / "models", "models", image=image, engine=engine.command, engine_options=options)
        with Starts(tmp_path / "log", START_SECONDS).start(kind, Ask("GET", "/v2", b"", {})) as instance:
            assert counted(instance).items == 0
            assert instance.settings["echo.max_batch_size"].used == "8"
            assert kind.information()["image"].startswith(f"{image} ")
            assert len(inside := instance.members()) > 1
        assert (
            image.encode() not in subprocess.run([*engine.command, "ps", "-a"], check=True, capture_output=True).stdout
        )
        assert not any(Path(f"/proc/{pid}").exists() for pid in inside)
    finally:
        subprocess.run([*engine.command, "rmi", "--force", image], check=True, capture_output=True)
