"""Servers in containers: the command that runs one in the foreground, and the command that removes it.

The client (docker, podman) is the child that `Process` starts, so SIGTERM reaches the server through it. The container
has this machine's network, so that no forwarder takes part in the measurement.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import psutil

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.process.logs import printable
from pytest_gpuserve.process.tree import TREE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

ENGINE_ANSWER_SECONDS: Final = 10.0
"""Longest wait for an engine's answer about itself, an image or a container."""

_OBEYED: Final = re.compile(
    r"PATH|HOME|USER|TMPDIR|(LD|XDG|CONTAINERS|PODMAN|STORAGE|DOCKER_CLI|DOCKER_CONTENT_TRUST)_.*"
    r"|DOCKER_(HOST|CONTEXT|CONFIG|TLS|TLS_VERIFY|CERT_PATH|API_VERSION|DEFAULT_PLATFORM)"
    r"|CONTAINER_(HOST|CONNECTION|SSHKEY)|REGISTRY_AUTH_FILE|GLIBC_TUNABLES|GO(DEBUG|GC|MAXPROCS|MEMLIMIT|TRACEBACK)"
)
"""Variables that change a client, or its loader; they are not secrets."""


@dataclass(frozen=True)
class Engine:
    """A container engine's client; found with `find_engine`.

    Args:
        command: Program and its own options, such as ``("podman", "--runtime", "runc")``.
        options: Further options of its ``run``.
        is_podman: Whether it takes podman's options; all others imitate docker.
    """

    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    is_podman: bool = False


@dataclass(frozen=True)
class Container:
    """Image and command, and the container's view of this machine.

    Args:
        image: An image on this machine.
        argv: Arguments of its entry point: usually program and arguments.
        env: Variables of the server; others come from the image.
        read_only: Files and folders of this machine, absolute, with their paths in the container.
        gpus: UUIDs of the GPUs that it may use; may be empty.
        shm_bytes: Size of its /dev/shm.
    """

    image: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    read_only: Mapping[Path, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    shm_bytes: int = 1 << 26


@dataclass(frozen=True)
class ContainerCommand:
    """Arguments of `Process.start`: the client in the foreground with its environment, and the removal command."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    after: tuple[tuple[str, ...], ...]


def find_engine(command: tuple[str, ...] | None = None, *, options: tuple[str, ...] = ()) -> Engine:
    """Engine of this command, or else docker or podman: the first that works. Raises ServerFailed if none does."""
    found = []
    for each in (("docker",), ("podman",)) if command is None else (command,):
        try:
            is_podman = "podman" in _said((*each, "--version")).lower()
            form = "{{.Host.Hostname}}" if is_podman else "{{.Name}} {{.SecurityOptions}}"
            host, _, security = _said((*each, "info", f"--format={form}")).partition(" ")
        except ValueError as problem:
            found.append(f"{shlex.join(each)}: {problem}")
            continue
        if host == socket.gethostname() and "rootless" not in security:
            return Engine(each, options, is_podman)
        found.append(f"{shlex.join(each)}: its containers do not share this machine's loopback: {host} {security}")
    raise ServerFailed(
        "no container engine works here, so no server can be run from an image",
        found="\n".join(found),
        looked=[f"PATH={os.environ.get('PATH', '')}"],
        remedies=[
            "make `docker info` or `podman info` work for this user, on this machine",
            "start the daemon: sudo systemctl start docker; or get permission: sudo usermod -aG docker $USER",
        ],
    )


def image_id(engine: Engine, image: str) -> str:
    """Id of the image that has this name now. Raises ServerFailed if it is not on this machine."""
    try:
        return _said((*engine.command, "image", "inspect", "--format={{.Id}}", image))
    except ValueError as problem:
        fetch = [f"fetch it, because a measurement does not: {shlex.join((*engine.command, 'pull', image))}"]
        raise ServerFailed(f"the image {image} is not on this machine", found=str(problem), remedies=fetch) from None


def container_command(engine: Engine, container: Container, *, client_env: Mapping[str, str]) -> ContainerCommand:
    """Make the commands that run and remove one container. Raises UsageProblem for impossible arguments.

    Values of variables stay off the command line, which every user of the machine can read, except those of `_OBEYED`.
    """
    _check(container)
    podman = engine.is_podman
    name = f"gpuserve-{uuid.uuid4().hex[:12]}"
    passed = {each: value for each, value in container.env.items() if not _OBEYED.fullmatch(each)}
    # The quotation marks are part of the value: without them the comma would begin another field.
    gpus = [f"nvidia.com/gpu={gpu}" for gpu in container.gpus] if podman else [f'"device={",".join(container.gpus)}"']
    argv = (
        *engine.command,
        "run",
        f"--name={name}",
        "--pull=never",
        "--network=host",
        # The client writes to the log of the process; the engine would write everything again.
        "--log-driver=none",
        # Our user, so that its files and its sockets are ours; podman's own root is the user who started it.
        f"--user={'0:0' if podman else f'{os.geteuid()}:{os.getegid()}'}",
        f"--shm-size={container.shm_bytes}",
        # podman passes the user's proxies on, docker only those in its own settings.
        *(["--http-proxy=false"] if podman else []),
        *([f"--{'device' if podman else 'gpus'}={gpu}" for gpu in gpus] if container.gpus else []),
        *(f"--mount=type=bind,source={path},target={at},readonly" for path, at in container.read_only.items()),
        f"--env={TREE_VARIABLE}",
        *(f"--env={each}" if each in passed else f"--env={each}={value}" for each, value in container.env.items()),
        *engine.options,
        container.image,
        *container.argv,
    )
    remove = (*engine.command, "rm", "--force", "--volumes", *(["--ignore", "--time=0"] if podman else []), name)
    return ContainerCommand(name, argv, {**client_env, **passed}, (remove,))


def _check(container: Container) -> None:
    """Check that no argument is taken for an option."""
    paths = [text for pair in container.read_only.items() for text in map(str, pair)]
    for right, texts in ((r"[^-].*", [container.image]), (r'/[^,"\n]*', paths), (r"[A-Za-z_]\w*", container.env)):
        for text in texts:
            if not re.fullmatch(right, text):
                raise UsageProblem("an image, path or variable cannot be given to a container engine", found=repr(text))


def member_pids(engine: Engine, run: ContainerCommand) -> Callable[[], set[int]]:
    """Make the ``also`` of `ready.owned_port_probe`: pids of all processes in this container, in our namespace.

    The engine's pid of the first process counts only if the kernel has that process in this container too.
    """
    argv = (*engine.command, "inspect", "--type=container", "--format={{.State.Pid}} {{.Id}}", run.name)
    known: list[psutil.Process] = []

    def members() -> set[int]:
        try:
            if not (known and known[0].is_running()):
                pid, _, container = _said(argv).partition(" ")
                with open(f"/proc/{int(pid)}/cgroup") as groups:  # noqa: PTH123 -- as the rest of /proc
                    known[:] = [psutil.Process(int(pid))] if container and container in groups.read() else []
            return {member.pid for first in known for member in (first, *first.children(recursive=True))}
        except (OSError, ValueError, psutil.Error):
            return set()

    return members


def _said(argv: tuple[str, ...]) -> str:
    """Output of a client. Raises ValueError if it cannot run, fails, prints nothing or does not end in time."""
    try:
        done = subprocess.run(
            argv, check=False, capture_output=True, text=True, errors="replace", timeout=ENGINE_ANSWER_SECONDS
        )
    except FileNotFoundError:
        raise ValueError("not installed") from None
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise ValueError(str(problem)) from None
    if done.returncode or not done.stdout.strip():
        lines = [printable(line) for line in done.stderr.splitlines() if line.strip()]
        raise ValueError(lines[-1] if lines else f"`{shlex.join(argv)}` has no output, exit status {done.returncode}")
    return done.stdout.strip()
