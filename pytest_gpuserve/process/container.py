"""Servers in containers: the command that runs one in the foreground, and those that remove it.

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

import json
import os
import re
import shlex
import socket
import subprocess
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import psutil

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.process.logs import printable
from pytest_gpuserve.process.tree import TREE_VARIABLE
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

ENGINE_ANSWER_SECONDS = 10.0
"""Longest wait for a container engine to say something about itself, an image or a container."""

_KNOWN: tuple[tuple[str, ...], ...] = (("docker",), ("podman",))

_INSTALL = {
    "docker": "install Docker Engine: https://docs.docker.com/engine/install/",
    "podman": "install podman, as with `apt-get install podman`",
}


@dataclass(frozen=True)
class Engine:
    """A container engine's client, and what it needs on this machine; found with `find_engine`.

    Args:
        command: Program and its own options, such as ``("podman", "--runtime", "runc")``. It is sent signals, so a
            wrapper that runs as another user (sudo) cannot be used.
        options: More options of its ``run``, such as ``("--init",)`` or ``("--security-opt=label=disable",)``; of two
            that exclude each other the engine takes these.
        kind: Whose options it takes; everything but podman imitates docker.
    """

    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    kind: Literal["docker", "podman"] = "docker"

    def __str__(self) -> str:
        return shlex.join(self.command)


@dataclass(frozen=True)
class EngineState:
    """Result of an attempt to reach a container engine."""

    name: str
    works: bool
    found: str
    remedy: str = ""
    engine: Engine | None = None


def image_id(engine: Engine, image: str, *, env: Mapping[str, str]) -> str:
    """Id of an image that is on this machine, as ``sha256:...``: what a name stands for today.

    Raises:
        ServerFailed: It is not here, or the engine does not answer.
    """
    argv = (*engine.command, "image", "inspect", "--format={{.Id}}", image)
    answer = ask_engine(argv, env)
    if answer.returncode == 0 and answer.stdout.strip():
        return answer.stdout.strip()
    raise ServerFailed(
        f"the image {image} is not on this machine",
        found=_last_line(answer.stderr),
        looked=[shlex.join(argv)],
        remedies=[f"fetch it, for a measurement does not: {engine} pull {shlex.quote(image)}"],
    )


def examine(
    commands: Sequence[tuple[str, ...]] = _KNOWN, *, options: tuple[str, ...] = (), env: Mapping[str, str] = os.environ
) -> list[EngineState]:
    """Try to reach each container engine; takes up to 20 s for one that does not answer.

    An engine whose containers would not share this machine's loopback (on another machine, in a virtual one, or
    rootless docker) counts as not working.

    Args:
        commands: Clients, each with its own options; the default is docker and podman.
        options: Put into every engine that works, see `Engine`.
    """
    return [_examine_one(command, options, env) for command in commands]


def find_engine(
    command: tuple[str, ...] | None = None, *, options: tuple[str, ...] = (), env: Mapping[str, str] = os.environ
) -> Engine:
    """The container engine of this command, or else docker or podman: the first that works.

    Args:
        command: Client with its own options; None to look for one.

    Raises:
        ServerFailed: None works; says for each what is wrong and what helps.
    """
    states: list[EngineState] = []
    for each in _KNOWN if command is None else (command,):
        states += examine([each], options=options, env=env)
        if states[-1].engine is not None:
            return states[-1].engine
    raise ServerFailed(
        "no container engine works here, so no server can be run from an image",
        found="\n".join(f"{state.name}: {state.found}" for state in states),
        looked=[f"PATH={env.get('PATH', '')}"],
        remedies=[f"{state.name}: {state.remedy}" for state in states],
    )


def _examine_one(command: tuple[str, ...], options: tuple[str, ...], env: Mapping[str, str]) -> EngineState:
    name = shlex.join(command)
    try:
        version = ask_engine((*command, "--version"), env)
        answer = ask_engine((*command, "info", "--format={{json .}}"), env)
    except ServerFailed as failure:
        missing = isinstance(failure.__cause__, FileNotFoundError)
        remedy = _INSTALL.get(command[0], "name a program on the PATH") if missing else failure.remedies[0]
        return EngineState(name, works=False, found="not installed" if missing else failure.found, remedy=remedy)
    kind: Literal["docker", "podman"] = "podman" if "podman" in version.stdout.lower() else "docker"
    found, remedy = _trouble(kind, name, answer)
    if remedy:
        return EngineState(name, works=False, found=found, remedy=remedy)
    return EngineState(name, works=True, found=found, engine=Engine(command, options, kind))


def _trouble(kind: str, name: str, answer: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """What ``info`` tells of an engine: what was found, and what helps (empty if it works)."""
    try:
        info: dict[str, Any] = json.loads(answer.stdout)
    except ValueError:
        info = {}
    if kind == "podman":
        version, host = info.get("version", {}).get("Version", ""), info.get("host", {}).get("hostname", "")
        security = ""
    else:
        version, host = info.get("ServerVersion", ""), info.get("Name", "")
        security = " ".join(info.get("SecurityOptions") or ())
    if answer.returncode != 0 or not version:
        said = _last_line(answer.stderr) or _last_line("\n".join(info.get("ServerErrors") or ()))
        said = said or f"nothing to go by, exit status {answer.returncode}"
        if "permission denied" in said.lower():
            return said, "let this user use it: sudo usermod -aG docker $USER, then log in again"
        if kind == "docker" and "connect" in said.lower():
            return said, "start its daemon: sudo systemctl start docker"
        return said, f"run it by hand: {name} info"
    if "rootless" in security:
        return (
            f"version {version}, rootless: its containers do not share this machine's loopback",
            "use podman, or docker as a system service",
        )
    if host != socket.gethostname():
        return (
            f"version {version}, but its containers run on the machine {host!r}, and this is {socket.gethostname()!r}",
            "run pytest on the machine of the engine; see: docker context show, DOCKER_HOST, CONTAINER_HOST",
        )
    return f"version {version}", ""


def ask_engine(argv: tuple[str, ...], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a client to its end; its result whatever that is.

    Raises:
        ServerFailed: It cannot be run, or does not end.
    """
    line = shlex.join(argv)
    try:
        return subprocess.run(
            argv,
            env=env,
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=ENGINE_ANSWER_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        found = f"`{line}` did not end in {format_seconds(ENGINE_ANSWER_SECONDS)}"
        raise ServerFailed(
            "a container engine does not answer", found=found, remedies=[f"run it by hand: {line}"]
        ) from error
    except OSError as error:
        raise ServerFailed(
            "a container engine cannot be run", found=f"{argv[0]}: {error}", remedies=["make it executable"]
        ) from error


def _last_line(text: str) -> str:
    lines = [printable(line) for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


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
        argv: What the image's entry point is given: as a rule program and arguments.
        env: Variables of the server; what else it has comes from the image.
        read_only: Files and folders of this machine, absolute, with their paths in the container.
        gpus: UUIDs of the cards that it may use; none if empty.
        shm_bytes: Size of its /dev/shm in bytes; None: the engine's own choice, as a rule 64 MiB.
    """

    image: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    read_only: Mapping[Path, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    shm_bytes: int | None = None


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

    Raises:
        UsageProblem: A path, card, variable or image cannot be given to an engine; says which.
    """
    if not container.image or container.image.startswith("-"):
        raise UsageProblem("a container needs the name of an image", found=repr(container.image), looked=["image="])
    podman = engine.kind == "podman"
    name = f"gpuserve-{uuid.uuid4().hex[:12]}"
    argv = [
        *engine.command,
        "run",
        f"--name={name}",
        # A measurement fetches nothing; and the port of another network could not be seen to be the server's.
        "--pull=never",
        "--network=host",
        # The client writes to the log of the process; the engine would write it all once more.
        "--log-driver=none",
        # Ours, so that its files and its sockets are ours; podman's own root is whoever started it.
        f"--user={'0:0' if podman else f'{os.geteuid()}:{os.getegid()}'}",
        *([f"--shm-size={container.shm_bytes}"] if container.shm_bytes is not None else []),
        # podman hands the user's proxies on, docker only those in its own settings.
        *(["--http-proxy=false"] if podman else []),
        *_gpu_options(container.gpus, podman=podman),
        *(_mount(path, inside) for path, inside in container.read_only.items()),
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


def _mount(path: Path, inside: str) -> str:
    for each in (str(path), inside):
        if not each.startswith("/") or any(mark in each for mark in ',"\n'):
            raise UsageProblem(
                "a path cannot be mounted into a container",
                found=repr(each),
                remedies=["give an absolute path without commas, quotation marks and line ends"],
            )
    return f"--mount=type=bind,source={path},target={inside},readonly"


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
