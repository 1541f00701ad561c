"""Container engines (docker, podman): which of them can run servers on this machine, and what they say."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process.logs import printable
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    """What became of the attempt to reach a container engine.

    Args:
        name: Its command line.
        works: It can run containers on this machine.
        found: Its version, or what is wrong.
        remedy: What helps; empty if it works.
        engine: The engine if it works.
    """

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
        env: Environment of the clients.
    """
    return [_examine_one(command, options, env) for command in commands]


def find_engine(
    command: tuple[str, ...] | None = None, *, options: tuple[str, ...] = (), env: Mapping[str, str] = os.environ
) -> Engine:
    """The container engine of this command, or else docker or podman: the first that works.

    Args:
        command: Client with its own options; None to look for one.
        options: More options of its ``run``.
        env: Environment of the client.

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

    Args:
        argv: The client and its arguments.
        env: Its full environment.

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
