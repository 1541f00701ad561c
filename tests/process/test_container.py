"""Containers: the command lines, who can run them, and whose port it is when a daemon runs the server."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.process import container as module
from pytest_gpuserve.process import ready
from pytest_gpuserve.process.child import Process
from pytest_gpuserve.process.container import (
    Container,
    Engine,
    container_command,
    examine,
    find_engine,
    image_id,
    member_pids,
)
from pytest_gpuserve.process.deadline import Deadline
from pytest_gpuserve.process.ports import free_port, port_owner
from tests.fakes.children.docker_daemon import Asked, docker_daemon
from tests.fakes.children.toolkit import SAFETY_SECONDS, eventually, program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DOCKER = Engine(("docker", "--context=lab"))
PODMAN = Engine(("podman", "--runtime", "runc"), ("--ulimit=nofile=1024:1024",), "podman")
CARDS = ("GPU-8dd6", "MIG-c8a1")
TRITON = Container(
    "triton:24.08",
    ("tritonserver", "--http-port=1"),
    {"HF_TOKEN": "hunter2", "LD_PRELOAD": "/lib/inside.so"},
    {Path("/models"): "/models", Path("/tmp/a b"): "/cache"},
    CARDS,
    shm_bytes=1 << 20,
)


def test_a_docker_command_line_word_by_word() -> None:
    """Docker runs it in the foreground with this machine's network, as this user, and never fetches the image."""
    run = container_command(DOCKER, TRITON, client_env={"PATH": "/bin", "LD_PRELOAD": "/lib/outside.so"})
    begin = f"docker --context=lab run --name={run.name} --pull=never --network=host --log-driver=none"
    assert list(run.argv) == [
        *f"{begin} --user={os.geteuid()}:{os.getegid()} --shm-size=1048576".split(),
        '--gpus="device=GPU-8dd6,MIG-c8a1"',
        "--mount=type=bind,source=/models,target=/models,readonly",
        "--mount=type=bind,source=/tmp/a b,target=/cache,readonly",
        "--env=PYTEST_GPUSERVE_TREE",
        "--env=HF_TOKEN",
        "--env=LD_PRELOAD=/lib/inside.so",
        "triton:24.08",
        "tritonserver",
        "--http-port=1",
    ]
    assert run.env == {"PATH": "/bin", "LD_PRELOAD": "/lib/outside.so", "HF_TOKEN": "hunter2"}
    assert run.after == (("docker", "--context=lab", "rm", "--force", "--volumes", run.name),)


def test_a_podman_command_line_differs_where_podman_does() -> None:
    """Podman has its own words for cards, proxies, users and the removal, and its options stand before the image."""
    run = container_command(PODMAN, TRITON, client_env={})
    assert run.argv[:4] == ("podman", "--runtime", "runc", "run")
    words = set(run.argv)
    assert {"--device=nvidia.com/gpu=GPU-8dd6", "--device=nvidia.com/gpu=MIG-c8a1"} <= words
    assert {"--user=0:0", "--http-proxy=false", "--network=host", "--pull=never"} <= words
    assert not any(word.startswith("--gpus") for word in words)
    assert run.argv[run.argv.index("triton:24.08") - 1] == "--ulimit=nofile=1024:1024"
    assert run.after == (
        ("podman", "--runtime", "runc", "rm", "--force", "--volumes", "--ignore", "--time=0", run.name),
    )


@pytest.mark.parametrize("engine", [DOCKER, PODMAN])
def test_what_is_not_asked_for_is_not_there(engine: Engine) -> None:
    """No cards, size or removal by itself without being asked for; each container has a name of its own."""
    runs = [container_command(engine, Container("i"), client_env={}) for _ in range(50)]
    assert len({run.name for run in runs}) == 50
    for word in runs[0].argv:
        assert not word.startswith(("--gpus", "--device", "--shm-size", "--rm", "--mount", "--entrypoint"))
    assert runs[0].argv[-1] == "i"


@pytest.mark.parametrize("engine", [DOCKER, PODMAN])
@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        *((name, True) for name in ("HF_TOKEN", "DOCKER_PASSWORD", "DOCKER_AUTH_CONFIG", "https_proxy")),
        # What the client would obey itself is for the container alone.
        *((name, False) for name in ("PATH", "LD_LIBRARY_PATH", "DOCKER_HOST", "CONTAINERS_CONF")),
    ],
)
def test_no_secret_is_on_a_command_line(engine: Engine, name: str, *, is_secret: bool) -> None:
    """Its value is only in the client's environment, neither among the arguments nor in what follows."""
    run = container_command(engine, Container("i", env={name: "inside"}), client_env={name: "outside"})
    assert ("inside" in " ".join((*run.argv, *run.after[0]))) is not is_secret
    assert (f"--env={name}" if is_secret else f"--env={name}=inside") in run.argv
    assert run.env == {name: "inside" if is_secret else "outside"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"read_only": {Path("/a,b"): "/m"}}, "/a,b"),
        ({"read_only": {Path("/a"): "/m,ro=false"}}, "/m,ro=false"),
        ({"read_only": {Path('/a"b'): "/m"}}, '/a"b'),
        ({"read_only": {Path("/a\nb"): "/m"}}, r"/a\nb"),
        ({"read_only": {Path("relative"): "/m"}}, "relative"),
        ({"gpus": ('0",capabilities=all',)}, '0",capabilities=all'),
        ({"gpus": ("GPU-1,GPU-2",)}, "GPU-1,GPU-2"),
        ({"env": {"A=B": "c"}}, "A=B"),
        ({"image": ""}, "''"),
        ({"image": "--privileged"}, "--privileged"),
    ],
)
def test_what_would_be_taken_for_something_else_is_refused(change: dict[str, Any], named: str) -> None:
    """Commas, quotation marks and the like would become other options; the error shows what was refused."""
    for engine in (DOCKER, PODMAN):
        with pytest.raises(UsageProblem) as refusal:
            container_command(engine, dataclasses.replace(Container("i"), **change), client_env={})
        assert named in refusal.value.found


@pytest.fixture
def daemon_environment() -> Iterator[tuple[dict[str, str], list[Asked]]]:
    """The environment for a real docker client that reaches a daemon without containers, and what it asked there."""
    if shutil.which("docker") is None or "Docker version" not in _version("docker"):
        pytest.skip("docker: not installed")
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder, docker_daemon(Path(folder) / "s") as asked:
        yield {**os.environ, "DOCKER_HOST": f"unix://{folder}/s", "DOCKER_CONFIG": folder}, asked


def _version(client: str) -> str:
    return subprocess.run([client, "--version"], check=False, capture_output=True, text=True).stdout


def test_a_docker_client_asks_its_daemon_for_what_was_meant(
    daemon_environment: tuple[dict[str, str], list[Asked]], tmp_path: Path
) -> None:
    """The installed docker client reads the command line as it is meant: mounts, cards, values, user, no log.

    What follows asks to remove the running container with its volumes; that there is none is fine.
    """
    env, asked = daemon_environment
    run = container_command(Engine(("docker",)), TRITON, client_env=env)
    done = subprocess.run(run.argv, check=False, env=run.env, capture_output=True, text=True)
    assert done.returncode == 125, done.stderr
    (create,) = (each for each in asked if each.path.partition("?")[0].endswith("/containers/create"))
    assert create.path.endswith(f"?name={run.name}")
    assert create.body["Image"] == "triton:24.08"
    assert create.body["Cmd"] == ["tritonserver", "--http-port=1"]
    assert create.body["User"] == f"{os.geteuid()}:{os.getegid()}"
    assert {"HF_TOKEN=hunter2", "LD_PRELOAD=/lib/inside.so"} <= set(create.body["Env"])
    host = create.body["HostConfig"]
    assert (host["NetworkMode"], host["ShmSize"], host["LogConfig"]["Type"]) == ("host", 1 << 20, "none")
    mounts = [(each["Source"], each["Target"], each.get("ReadOnly", False)) for each in host["Mounts"]]
    assert mounts == [("/models", "/models", True), ("/tmp/a b", "/cache", True)]
    (cards,) = host["DeviceRequests"]
    assert cards["DeviceIDs"] == list(CARDS)
    assert not any("/images/create" in each.path for each in asked)
    with Process.start(dataclasses.replace(program("true", folder=tmp_path), env=run.env), after=run.after):
        pass
    removed = f"/v1.44/containers/{run.name}?force=1&v=1"
    assert [each.path for each in asked if each.method == "DELETE"] == [removed]


def client(folder: Path, name: str, **answers: str) -> Mapping[str, str]:
    """Put a client there that answers these subcommands with these shell scripts; returns the environment for it."""
    cases = "\n".join(f"{word.replace('_', '-')}) {script} ;;" for word, script in answers.items())
    (folder / name).write_text(f'#!/bin/sh\ncase "$1" in\n{cases}\n*) echo "what is $1?" >&2; exit 9 ;;\nesac\n')
    (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


def info(**fields: object) -> str:
    """A shell script that prints what ``info`` says of an engine."""
    return f"echo '{json.dumps(fields)}'"


HERE = socket.gethostname()
DOCKER_VERSION = "echo Docker version 28.2.2"
PODMAN_VERSION = "echo podman version 4.3.1"


def test_an_engine_that_works_is_found_docker_before_podman(tmp_path: Path) -> None:
    """The first of the two that works is taken, with its kind and the options that were given.

    The kind is what the program says that it is: on some systems docker is another name of podman.
    """
    podman = {"--version": PODMAN_VERSION, "info": info(version={"Version": "4.3.1"}, host={"hostname": HERE})}
    env = client(tmp_path, "podman", **podman)
    assert find_engine(options=("--init",), env=env) == Engine(("podman",), ("--init",), "podman")
    client(tmp_path, "docker", **podman)
    assert find_engine(env=env) == Engine(("docker",), (), "podman")
    works = info(ServerVersion="28.2.2", Name=HERE, SecurityOptions=["name=seccomp"])
    client(tmp_path, "docker", **{"--version": DOCKER_VERSION, "info": works})
    assert find_engine(env=env) == Engine(("docker",))
    assert find_engine(("podman",), env=env) == Engine(("podman",), (), "podman")
    assert [(state.name, state.works, state.found) for state in examine(env=env)] == [
        ("docker", True, "version 28.2.2"),
        ("podman", True, "version 4.3.1"),
    ]


@pytest.mark.parametrize(
    ("answer", "found", "remedy"),
    [
        ("echo 'Cannot connect to the Docker daemon' >&2; exit 1", "Cannot connect", "systemctl start docker"),
        ("echo 'permission denied while trying to connect to' >&2; exit 1", "permission denied", "usermod -aG docker"),
        (info(ServerVersion="", ServerErrors=["Cannot connect to it"]), "Cannot connect to it", "start docker"),
        (info(ServerVersion="", Name=""), "exit status 0", "docker info"),
        ("echo nonsense", "exit status 0", "docker info"),
        ("exit 3", "exit status 3", "docker info"),
        (info(ServerVersion="28", Name=HERE, SecurityOptions=["name=rootless"]), "rootless", "podman"),
        (info(ServerVersion="28", Name="docker-desktop"), "'docker-desktop'", "DOCKER_HOST"),
        ("exec /bin/sleep 600", "did not end in 2", "run it by hand"),
    ],
)
def test_an_engine_that_does_not_work_says_why_and_what_helps(
    answer: str, found: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unreachable, forbidden, silent, rootless or on another machine: each has its own reason and remedy."""
    if "sleep" in answer:
        monkeypatch.setattr(module, "ENGINE_ANSWER_SECONDS", 2.0)
    env = client(tmp_path, "docker", **{"--version": DOCKER_VERSION, "info": answer})
    (state,) = examine([("docker",)], env=env)
    assert not state.works
    assert state.engine is None
    assert found in state.found
    assert remedy in state.remedy


def test_where_no_engine_works_all_are_named(tmp_path: Path) -> None:
    """The error has the reason and the remedy of each, and the PATH on which they were looked for."""
    (tmp_path / "podman").write_text("not executable")
    with pytest.raises(ServerFailed) as failure:
        find_engine(env={"PATH": str(tmp_path)})
    text = str(failure.value)
    assert "docker: not installed" in text
    assert "install Docker Engine" in text
    assert "podman: podman: [Errno 13] Permission denied" in text
    assert f"PATH={tmp_path}" in text


def test_an_image_that_is_not_here_comes_with_the_command_that_fetches_it(tmp_path: Path) -> None:
    """A name stands for an id; without one the engine's word and the exact command are shown."""
    env = client(tmp_path, "docker", image="echo sha256:abc")
    assert image_id(Engine(("docker",)), "triton:24.08", env=env) == "sha256:abc"
    for answer, found in (
        ("echo sha256:abc; echo; echo Error: No such image: triton >&2; exit 1", "Error: No such image: triton"),
        ("echo", ""),
    ):
        env = client(tmp_path, "docker", image=answer)
        with pytest.raises(ServerFailed, match="not on this machine") as failure:
            image_id(Engine(("docker",)), "triton:24.08", env=env)
        assert failure.value.found == found
        assert "fetch it, for a measurement does not: docker pull triton:24.08" in str(failure.value)


def test_a_process_counts_as_the_containers_only_if_the_kernel_agrees(tmp_path: Path) -> None:
    """A pid that an engine names, but whose control group is not of that container, is nobody's: it may be anyone."""
    run = container_command(Engine(("docker",)), Container("i"), client_env={})
    group = Path("/proc/self/cgroup").read_text().splitlines()[0]
    for answer, expected in (
        (f"echo '{os.getpid()} 0123456789abcdef'", False),
        (f"echo '{os.getpid()} {group}'", True),
        ("echo '0 0123456789abcdef'", False),
        ("echo '<no value>'", False),
        (f"echo '{os.getpid()}'", False),
        (f"echo '{os.getpid()} {group}'; exit 1", False),
        ("exit 1", False),
    ):
        env = client(tmp_path, "docker", inspect=answer)
        asked = dataclasses.replace(run, env=env)
        assert (os.getpid() in member_pids(Engine(("docker",)), asked)()) == expected, answer
    (tmp_path / "docker").unlink()
    assert member_pids(Engine(("docker",)), asked)() == set()


def test_a_port_may_be_held_by_what_also_belongs_to_the_server(tmp_path: Path) -> None:
    """A listener outside of the tree is the server's if it is said to be; that excuses no stranger on the same port."""
    port = free_port()
    folder = tmp_path / "outside"
    folder.mkdir()
    shared = (
        "import socket, sys, time; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1);"
        "s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(); time.sleep(600)"
    )
    with (
        socket.socket() as ours,
        Process.start(program("sleep", "600", folder=tmp_path)) as process,
        Process.start(program(sys.executable, "-c", shared, str(port), folder=folder)) as outside,
    ):
        eventually(lambda: port_owner(port) is not None, "the server outside listens")
        mine = ready.owned_port_probe(process, port, also=lambda: {outside.pid, os.getpid()})
        ready.wait(mine, process, Deadline.after(SAFETY_SECONDS), what="echo server")
        with pytest.raises(ServerFailed, match="foreign server") as refusal:
            ready.owned_port_probe(process, port, also=set)()
        assert str(outside.pid) in refusal.value.found
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        ours.bind(("127.0.0.1", port))
        ours.listen()
        with pytest.raises(ServerFailed, match="foreign server"):
            ready.owned_port_probe(process, port, also=lambda: {os.getpid()})()
