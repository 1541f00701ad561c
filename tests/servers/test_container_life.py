"""Servers in real containers, by each engine that works here: they get ready, and nothing of them is left."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process import ready
from pytest_gpuserve.process.child import Command, Process
from pytest_gpuserve.process.container import (
    Container,
    ContainerCommand,
    Engine,
    container_command,
    find_engine,
    image_id,
    member_pids,
)
from pytest_gpuserve.process.deadline import Deadline
from pytest_gpuserve.process.ports import free_port, port_owner
from pytest_gpuserve.servers.base import Ask, Site
from pytest_gpuserve.servers.triton import Triton
from pytest_gpuserve.servers.triton_config import write_model
from pytest_gpuserve.servers.triton_install import find_triton
from tests.fakes.children.toolkit import HERE, SAFETY_SECONDS, alive, eventually, report
from tests.servers.deployments import Starts, counted
from tests.servers.triton_server import CONFIG, MODEL, START_SECONDS, triton_python

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTHON = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
SYSTEM = [Path(f"/{name}") for name in ("bin", "lib", "lib64", "sbin")]
"""Beside /usr these make up a running system; on most they are only links into it."""

READ_ONLY = {path: str(path) for path in (Path("/usr"), Path(sys.base_prefix), HERE)}
READ_ONLY |= {path: str(path) for path in SYSTEM if path.is_dir() and not path.is_symlink()}

OPTIONS: tuple[tuple[str, ...], ...] = ((), ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000"))
"""What the engine needs for a container here: where limits cannot be raised, podman must not try to."""


def bare_image(*folders: str) -> bytes:
    """An image with nothing but the places where parts of this machine are mounted: no registry is asked."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("usr", "proc", "sys", "dev", "etc", "tmp", *folders):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        for path in filter(Path.is_symlink, SYSTEM):
            link = tarfile.TarInfo(path.name)
            link.type, link.linkname = tarfile.SYMTYPE, str(path.readlink())
            archive.addfile(link)
    return packed.getvalue()


@contextmanager
def imported(engine: Engine, *folders: str) -> Iterator[str]:
    """The name of such an image; skips the test where the engine cannot make one."""
    image = f"gpuserve-test-{uuid.uuid4().hex[:12]}"
    argv = [*engine.command, "import", "-", image]
    done = subprocess.run(argv, check=False, input=bare_image(*folders), capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"{engine} cannot make an image: {done.stderr.decode(errors='replace')}")
    try:
        yield image
    finally:
        subprocess.run([*engine.command, "rmi", "--force", image], check=True, capture_output=True)


def server(image: str, port: int, manner: str) -> Container:
    """The server that all these tests run."""
    argv = (PYTHON, "-I", str(HERE / "contained.py"), str(port), manner)
    return Container(image, argv, {"GREETING": "good day"}, READ_ONLY)


@pytest.fixture(scope="module", params=["docker", "podman"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, str]]:
    """An engine that can run a container here, and an image."""
    try:
        engine = find_engine((request.param,))
    except ServerFailed as failure:
        pytest.skip(f"{request.param}: {failure.found}")
    with imported(engine) as image:
        for options in OPTIONS:
            usable = Engine(engine.command, options, engine.kind)
            run = container_command(usable, Container(image, (PYTHON, "-V"), {}, READ_ONLY), client_env=os.environ)
            with tempfile.TemporaryDirectory() as folder:
                command = Command(run.argv, run.env, Path(folder), Path(folder) / "log")
                with Process.start(command, after=run.after) as tried:
                    status, said = tried.wait(SAFETY_SECONDS), tried.tail()
            if status == 0:
                break
        else:
            pytest.skip(f"{request.param} cannot run a container: {said}")
        yield usable, image


@contextmanager
def running(
    place: tuple[Engine, str], folder: Path, port: int, manner: str
) -> Iterator[tuple[Process, ContainerCommand]]:
    """A server that is ready; in the end it is stopped, and nothing of it may be left."""
    engine, image = place
    run = container_command(engine, server(image, port, manner), client_env=os.environ)
    inside: set[int] = set()
    with Process.start(Command(run.argv, run.env, folder, folder / "log"), after=run.after) as process:
        members = member_pids(engine, run)
        probe = ready.owned_port_probe(process, port, also=members)
        ready.wait(probe, process, Deadline.after(SAFETY_SECONDS), what="the server in a container")
        inside |= {*members(), *(each.pid for each in process.tree())}
        yield process, run
    assert nothing_left(engine, run.name, port, inside)


def nothing_left(engine: Engine, name: str, port: int, pids: set[int]) -> bool:
    """Say whether container, processes (the engine's watchers too) and listener are all gone."""
    listed = subprocess.run(
        [*engine.command, "ps", "--all", "--quiet", f"--filter=name={name}"], check=True, capture_output=True
    )
    lines = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    watchers = [line for line in lines if name in line]
    return not listed.stdout and not watchers and not any(map(alive, pids)) and port_owner(port) is None


def test_a_server_in_a_container_is_ready_and_stopped_like_any_other(place: tuple[Engine, str], tmp_path: Path) -> None:
    """It answers on loopback with its variable, is told to end by SIGTERM, says so in the log, and leaves nothing."""
    port = free_port()
    with running(place, tmp_path, port, "polite") as (process, run):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=SAFETY_SECONDS) as answer:
            assert answer.read() == b"good day"
        assert len(member_pids(place[0], run)()) == 2
    assert "told to end" in process.tail()
    # One that ignores it is gone after the grace.
    with running(place, tmp_path, free_port(), "stubborn") as (process, _):
        process.stop(0.5)


def test_a_container_outlives_its_supervisor_only_until_stop(place: tuple[Engine, str], tmp_path: Path) -> None:
    """Where the supervisor was killed, and the client with it, the container is still known, and stop ends it."""
    with running(place, tmp_path, free_port(), "polite") as (process, run):
        os.kill(process._supervisor.pid, signal.SIGKILL)
        assert process.wait(SAFETY_SECONDS) == -signal.SIGKILL
        inside = member_pids(place[0], run)()
        assert len(inside) == 2
        assert inside <= {each.pid for each in process.tree()}


@pytest.mark.parametrize("manner", ["polite", "stubborn"])
def test_no_container_outlives_an_owner_that_is_killed(manner: str, place: tuple[Engine, str], tmp_path: Path) -> None:
    """After kill -9 of the owner there is soon no container, process, watcher or listener of it."""
    engine, image = place
    port = free_port()
    run = container_command(engine, server(image, port, manner), client_env=os.environ)
    order = {"commands": [run.argv], "folder": str(tmp_path), "owned": [], "fork": False, "after": run.after}
    (tmp_path / "order").write_text(json.dumps(order))
    argv = [sys.executable, str(HERE / "owner.py"), str(tmp_path / "order"), str(tmp_path / "report")]
    with subprocess.Popen(argv, env=run.env, start_new_session=True) as owner:
        try:
            reported = report(tmp_path / "report")
            eventually(lambda: port_owner(port) is not None, "the server listens")
            pids = {*member_pids(engine, run)(), *reported["children"], *reported["supervisors"]}
            assert len(pids) == 4
        finally:
            owner.kill()
    eventually(lambda: nothing_left(engine, run.name, port, pids), "everything of the killed owner's is gone")


def test_an_image_goes_by_its_id_and_a_missing_one_is_named(place: tuple[Engine, str]) -> None:
    """A name is resolved to what it stands for; an image that is not here comes with the command that fetches it."""
    engine, image = place
    assert len(image_id(engine, image, env=os.environ).removeprefix("sha256:")) == 64
    with pytest.raises(ServerFailed, match=f"pull {image}-missing"):
        image_id(engine, f"{image}-missing", env=os.environ)


def test_what_is_mounted_read_only_cannot_be_written(place: tuple[Engine, str], tmp_path: Path) -> None:
    """A folder of this machine stays as it is."""
    engine, image = place
    kept = tmp_path / "kept"
    kept.mkdir()
    script = "import pathlib; pathlib.Path('/tmp/kept/new').touch()"
    container = Container(image, (PYTHON, "-I", "-c", script), read_only={**READ_ONLY, kept: "/tmp/kept"})
    run = container_command(engine, container, client_env=os.environ)
    with Process.start(Command(run.argv, run.env, tmp_path, tmp_path / "log"), after=run.after) as process:
        assert process.wait(SAFETY_SECONDS), process.tail()
    assert "Read-only file system" in (tmp_path / "log").read_text()
    assert not list(kept.iterdir())


# -- Triton by `image=`

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
        with Starts(tmp_path / "log", START_SECONDS).start(kind, ask) as instance:
            counters = counted(instance)
            assert (counters.items, list(counters.parts)) == (0, ["echo"])
            assert instance.settings["echo.max_batch_size"].used == "8"
            assert kind.information()["image"].startswith(image)
        listed = subprocess.run([*engine.command, "ps", "--all"], check=True, capture_output=True, text=True).stdout
        assert image not in listed
