"""Containers: the command lines, who can run them, and whose process it is when a daemon runs the server."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.process.container import Container, Engine, container_command, find_engine, image_id, member_pids

DOCKER = Engine(("docker",))
PODMAN = Engine(("podman", "--runtime", "runc"), ("--ulimit=nofile=1024:1024",), is_podman=True)
GPUS = ("GPU-8dd6", "MIG-c8a1")
VARIABLES = {"HF_TOKEN": "hunter2", "LD_PRELOAD": "/lib/inside.so"}
MOUNTS = {Path("/models"): "/models", Path("/tmp/a b"): "/cache"}
TRITON = Container("triton:24.08", ("tritonserver", "--http-port=1"), VARIABLES, MOUNTS, GPUS)

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_podman_command_line_differs_where_podman_does() -> None:
    """Podman has its own words for GPUs, proxies, users and the removal."""
    run = container_command(PODMAN, TRITON, client_env={"LD_PRELOAD": "/lib/outside.so"})
    assert run.argv[:4] == ("podman", "--runtime", "runc", "run")
    assert {*(f"--device=nvidia.com/gpu={gpu}" for gpu in GPUS), "--user=0:0", "--http-proxy=false"} <= {*run.argv}
    assert {"--env=HF_TOKEN", "--env=LD_PRELOAD=/lib/inside.so"} <= {*run.argv}
    assert run.env == {"LD_PRELOAD": "/lib/outside.so", "HF_TOKEN": "hunter2"}
    assert run.argv[-4:] == (*PODMAN.options, "triton:24.08", *TRITON.argv)
    assert run.after == ((*PODMAN.command, "rm", "--force", "--volumes", "--ignore", "--time=0", run.name),)


@pytest.mark.parametrize(
    "given",
    [
        *({"read_only": {Path(path): "/m"}} for path in ("/a,b", '/a"b', "relative", "/a\nb")),
        *({"read_only": {Path("/a"): "/m,ro=false"}}, {"env": {"A=B": "c"}}, {"image": "--privileged"}),
    ],
)
def test_what_would_be_taken_for_something_else_is_refused(given: dict[str, Any]) -> None:
    """Commas, quotation marks and the like would become other options."""
    with pytest.raises(UsageProblem, match="cannot be given to a container engine"):
        container_command(DOCKER, Container(**{"image": "i", **given}), client_env={})


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a client on the PATH, alone, that answers these subcommands with these shell scripts."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(name: str, **answers: str) -> None:
        cases = "\n".join(f"{word.replace('_', '-')}) {script} ;;" for word, script in answers.items())
        (tmp_path / name).write_text(f'#!/bin/sh\ncase "$1" in\n{cases}\nesac\n')
        (tmp_path / name).chmod(0o755)

    return put


@pytest.mark.parametrize(
    ("info", "found"),
    [
        (f"echo {socket.gethostname()} name=seccomp", ""),
        ("echo 'Cannot connect to the Docker daemon' >&2; exit 1", "Cannot connect to the Docker daemon"),
        ("exit 3", "exit status 3"),
        (f"echo {socket.gethostname()} name=rootless", "do not share this machine's loopback"),
        ("echo docker-desktop", "do not share this machine's loopback"),
    ],
)
def test_an_engine_is_found_that_works_here(client: Callable[..., None], info: str, found: str) -> None:
    """Docker comes before podman, each recognised by its output; the failures of both are reported."""
    client("docker", __version="echo Docker version 28", info=info)
    if not found:
        assert find_engine() == DOCKER
        return
    with pytest.raises(ServerFailed, match="no container engine works") as failure:
        find_engine()
    assert found in failure.value.found
    assert "podman: not installed" in failure.value.found
    client("podman", __version="echo podman version 4.3.1", info=f"echo {socket.gethostname()}")
    assert find_engine(options=("--init",)) == Engine(("podman",), ("--init",), is_podman=True)


def test_an_engine_is_believed_with_care(client: Callable[..., None]) -> None:
    """An image that is missing comes with the command that fetches it; a pid counts if the kernel has it inside."""
    run = container_command(DOCKER, Container("i"), client_env={})
    pid, group = os.getpid(), Path("/proc/self/cgroup").read_text().splitlines()[0]
    for answer in (f"{pid} 0123456789abcdef", "<no value>", str(pid)):
        client("docker", inspect=f"echo '{answer}'", image="echo Error: No such image: i >&2; exit 1")
        assert member_pids(DOCKER, run)() == set()
    with pytest.raises(ServerFailed, match=r"No such image: i[\s\S]*docker pull i"):
        image_id(DOCKER, "i")
    client("docker", inspect=f"echo '{pid} {group}'", image="echo sha256:abc")
    assert pid in member_pids(DOCKER, run)()
    assert image_id(DOCKER, "i") == "sha256:abc"
