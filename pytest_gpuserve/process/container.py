"""A server in a container: the command that runs it in the foreground, and those that end it for sure.

The client (docker, podman) is the child that `Process` starts, so SIGTERM reaches the server through it and its exit
status is the server's. The container of a daemon is nobody's descendant here, hence ``after``, for `Process.start`::

    engine = find_engine()
    run = container_command(engine, Container("triton:24", ("tritonserver", ...)), client_env=os.environ)
    process = Process.start(Command(run.argv, run.env, folder, log), after=run.after)
    probe = owned_port_probe(process, port, also=member_pids(engine, run))

The server's network is this machine's, so it binds 127.0.0.1 itself and its port has no forwarder that would take part
in every measurement. That, and ending processes by their ids, needs containers on this very
machine: see `container_engine.examine`.
"""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import psutil

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.process.container_engine import ask_engine
from pytest_gpuserve.process.marks import TREE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pytest_gpuserve.process.container_engine import Engine

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CARD = re.compile(r"[A-Za-z0-9/-]+")
_OBEYED_BY_CLIENTS = re.compile(
    r"PATH|HOME|USER|TMPDIR|(LD|XDG|CONTAINERS|PODMAN|STORAGE|DOCKER_CLI|DOCKER_CONTENT_TRUST)_.*"
    r"|DOCKER_(HOST|CONTEXT|CONFIG|TLS|TLS_VERIFY|CERT_PATH|API_VERSION|DEFAULT_PLATFORM)"
    r"|CONTAINER_(HOST|CONNECTION|SSHKEY)|REGISTRY_AUTH_FILE|GLIBC_TUNABLES|GO(DEBUG|GC|MAXPROCS|MEMLIMIT|TRACEBACK)"
)
"""Variables by which a client, or the loader that starts it, would itself be changed; none is where a secret stands."""


@dataclass(frozen=True)
class Container:
    """What to run, and what of this machine it gets to see.

    Args:
        image: Name or id of an image.
        argv: What the image's entry point is given: as a rule program and arguments.
        env: Variables of the server; what else it has comes from the image.
        read_only: Files and folders of this machine, absolute, with their paths in the container.
        writable: The same for folders that the server may write to.
        gpus: UUIDs of the cards that it may use; none if empty.
        user: ``UID:GID``; None: ours, so that its files and its sockets are ours; empty: the image's own.
        shm_bytes: Size of its /dev/shm in bytes; None: the engine's own choice, as a rule 64 MiB.
        network: ``host`` is the only one whose port can be seen to be the server's.
        pull: When the image is fetched; a measurement does not (see `container_engine.image_id`).
    """

    image: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    read_only: Mapping[Path, str] = field(default_factory=dict)
    writable: Mapping[Path, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    user: str | None = None
    shm_bytes: int | None = None
    network: str = "host"
    pull: Literal["never", "missing", "always"] = "never"


@dataclass(frozen=True)
class ContainerCommand:
    """What to hand to `Process.start`.

    Args:
        name: Name of the container, never used before.
        argv: Runs it in the foreground.
        env: The client's full environment: without it the server's variables have no values.
        after: Commands that remove the container, running or not; that there is none is a success.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    after: tuple[tuple[str, ...], ...]


def container_command(engine: Engine, container: Container, *, client_env: Mapping[str, str]) -> ContainerCommand:
    """Make the commands that run and remove one container.

    The values of ``container.env`` stay off the command line, which every user of the machine can read: the client
    takes them from its environment. Only those of names that the client itself would obey (PATH, DOCKER_HOST,
    LD_PRELOAD) are written out.

    No option lets the container remove itself: two removals at once make one of them fail.

    Args:
        engine: Who runs it.
        container: What to run.
        client_env: Environment in which the client works, as a rule `os.environ`.

    Raises:
        UsageProblem: A path, card, variable or image cannot be given to an engine; says which.
    """
    if not container.image or container.image.startswith("-"):
        raise UsageProblem("a container needs the name of an image", found=repr(container.image), looked=["image="])
    podman = engine.kind == "podman"
    name = f"gpuserve-{uuid.uuid4().hex[:12]}"
    user = _our_user(engine) if container.user is None else container.user
    argv = [
        *engine.command,
        "run",
        f"--name={name}",
        f"--pull={container.pull}",
        f"--network={container.network}",
        # The client writes to the log of the process; the engine would write it all once more.
        "--log-driver=none",
        *([f"--user={user}"] if user else []),
        *([f"--shm-size={container.shm_bytes}"] if container.shm_bytes is not None else []),
        # podman hands the user's proxies on, docker only those in its own settings.
        *(["--http-proxy=false"] if podman else []),
        *_gpu_options(container.gpus, podman=podman),
        *(_mount(path, inside, ",readonly") for path, inside in container.read_only.items()),
        *(_mount(path, inside, "") for path, inside in container.writable.items()),
        f"--env={TREE_VARIABLE}",
        *(_env_option(variable, value) for variable, value in container.env.items()),
        *engine.options,
        container.image,
        *container.argv,
    ]
    passed = {each: value for each, value in container.env.items() if not _OBEYED_BY_CLIENTS.fullmatch(each)}
    remove = [*engine.command, "rm", "--force", "--volumes", *(["--ignore", "--time=0"] if podman else []), name]
    return ContainerCommand(name, tuple(argv), {**client_env, **passed}, (tuple(remove),))


def member_pids(engine: Engine, run: ContainerCommand) -> Callable[[], set[int]]:
    """Make the ``also`` of `ready.owned_port_probe`: the pids of all processes in this container, as seen from here.

    They are taken from the engine's word for the first process, and only if the kernel, too, has that process in this
    container: the word of an engine on another machine would name a stranger. None if anything is unknown.
    """
    known: list[psutil.Process] = []

    def members() -> set[int]:
        if not (known and known[0].is_running()):
            known[:] = _first_process(engine, run)
        try:
            return {member.pid for first in known for member in (first, *first.children(recursive=True))}
        except psutil.Error:
            return set()

    return members


def _first_process(engine: Engine, run: ContainerCommand) -> list[psutil.Process]:
    try:
        argv = (*engine.command, "inspect", "--type=container", "--format={{.State.Pid}} {{.Id}}", run.name)
        answer = ask_engine(argv, run.env)
    except ServerFailed:
        return []
    pid, _, container = answer.stdout.strip().partition(" ")
    if answer.returncode != 0 or not pid.isdigit() or int(pid) == 0 or not container:
        return []
    try:
        with open(f"/proc/{pid}/cgroup") as groups:  # noqa: PTH123 - as the rest of /proc
            inside = container in groups.read()
        return [psutil.Process(int(pid))] if inside else []
    except (OSError, psutil.Error):
        return []


def _our_user(engine: Engine) -> str:
    # podman's own root is whoever started it: us.
    return "0:0" if engine.kind == "podman" else f"{os.geteuid()}:{os.getegid()}"


def _mount(path: Path, inside: str, flag: str) -> str:
    for each in (str(path), inside):
        if not each.startswith("/") or any(mark in each for mark in ',"\n'):
            raise UsageProblem(
                "a path cannot be mounted into a container",
                found=repr(each),
                remedies=["give an absolute path without commas, quotation marks and line ends"],
            )
    return f"--mount=type=bind,source={path},target={inside}{flag}"


def _gpu_options(gpus: tuple[str, ...], *, podman: bool) -> list[str]:
    for card in gpus:
        if not _CARD.fullmatch(card):
            raise UsageProblem("a GPU for a container goes by its UUID", found=repr(card), looked=["gpus="])
    if podman:
        return [f"--device=nvidia.com/gpu={card}" for card in gpus]
    # The quotation marks are part of the value: without them the comma would begin another field.
    return [f'--gpus="device={",".join(gpus)}"'] if gpus else []


def _env_option(variable: str, value: str) -> str:
    if not _VARIABLE.fullmatch(variable):
        raise UsageProblem("a variable of a container has an unusual name", found=repr(variable), looked=["env="])
    return f"--env={variable}={value}" if _OBEYED_BY_CLIENTS.fullmatch(variable) else f"--env={variable}"
