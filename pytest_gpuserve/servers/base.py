"""What every kind of server is to the rest: something that can be started afresh, asked, counted and ended."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, runtime_checkable

import pytest_gpuserve
from pytest_gpuserve.builds.relocation import PYTHONPATH
from pytest_gpuserve.units import digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.builds.relocation import Relocation
    from pytest_gpuserve.measure.counters import Counters, ServerSetting
    from pytest_gpuserve.process.container import Container, Engine

HOST = "127.0.0.1"

Transport = Literal["http", "queue"]
"""How requests reach a server: HTTP on its ports (and gRPC beside it), or (``queue``) HTTP/1.1 on `Site.queue`."""

Argument = str | int | float | bool | None
"""A command line argument of an app, by name: ``inference_workers=2`` is ``--inference-workers=2``, ``debug=True`` is
``--debug``; False and None are left out."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where one start of a server lives.

    Args:
        folder: Its private folder, for sockets and the like; removed after its end.
        ports: Its free loopback ports, by the names of ``ServerKind.ports``.
        host: Its address; not the loopback's only where somebody else runs it.
        tls: Whether it is spoken to over TLS, with its certificate checked.
        ca_file: Certificates to trust instead of the system's; empty for those.
        start_timeout_seconds: How long its start may take; what else it is asked may take a share of that.
    """

    folder: Path
    ports: Mapping[str, int] = field(default_factory=dict, hash=False)
    host: str = HOST
    tls: bool = False
    ca_file: str = ""
    start_timeout_seconds: float = 120.0

    @property
    def port(self) -> int:
        """The port that requests go to: the first; 0 where there is none."""
        return next(iter(self.ports.values()), 0)

    def url(self, path: str) -> str:
        """A path of its HTTP port as people write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}{path}"

    @property
    def queue(self) -> Path:
        """The Unix socket of an in-process worker."""
        return self.folder / "queue"


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a server's process.

    Args:
        argv: Program and arguments.
        environment: Variables on top of the inherited ones.
        cwd: Its working folder.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: Path


@dataclass(frozen=True, slots=True)
class ContainerLaunch:
    """How to start a server in a container.

    Args:
        engine: Who runs containers here.
        container: What is run, and what it gets to see; variables of the device are added.
    """

    engine: Engine
    container: Container


@dataclass(frozen=True, slots=True)
class Ask:
    """The request that tells whether the model answers.

    Args:
        method: Its HTTP method.
        path: Its path.
        body: What is sent.
        headers: Its headers.
    """

    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]


class ServerKind(Protocol):
    """One kind of server with its arguments; the swap point between servers.

    `pytest_gpuserve.servers.command` is the shortest one, to be copied for a new server.
    """

    @property
    def name(self) -> str:
        """What people call it, such as ``mosec``."""

    @property
    def ports(self) -> tuple[str, ...]:
        """Names of the TCP ports that it listens on, the one for requests first; none for a worker with a queue."""

    @property
    def transport(self) -> Transport:
        """How requests reach it."""

    @property
    def health(self) -> str:
        """A path that answers 200 once it is worth asking the model; empty where the model is asked at once."""

    @property
    def python(self) -> str:
        """The interpreter that has its libraries; empty where it runs elsewhere."""

    @property
    def default_model(self) -> str:
        """The model that an inference is for where the test names none; empty where it has to."""

    def launch(self, site: Site) -> Launch | ContainerLaunch:
        """Say how to start it there.

        Raises:
            ServerFailed: It cannot be started there.
        """

    def read_counters(self, site: Site) -> Counters | None:
        """Read its counters; None where it has none.

        Raises:
            ServerFailed: It did not answer, or its answer makes no sense.
        """

    def read_settings(self, site: Site) -> Mapping[str, ServerSetting]:
        """Read how the running server is really set up, beside what it was asked for.

        Raises:
            ServerFailed: It did not answer, or its answer makes no sense.
        """

    def read_cold_start(self, site: Site) -> Mapping[str, float]:
        """Parts of its cold start that it tells itself, in seconds and in order; empty where it tells none.

        Raises:
            ServerFailed: It did not answer, or its answer makes no sense.
        """

    def workload(self) -> Mapping[str, str]:
        """What a baseline must have in common with it, as text."""

    def information(self) -> Mapping[str, str]:
        """What is good to know of it but may change, such as the hash of its source."""

    def relocated(self, relocation: Relocation) -> ServerKind:
        """Make the same workload of another checkout, of another interpreter's packages, or of both.

        Raises:
            NotInRevision: That checkout has no such server, or nothing of it would be another there.
        """


class TellsNothing:
    """Base of a kind whose servers tell neither how they are set up nor how they came up."""

    def read_settings(self, site: Site) -> Mapping[str, ServerSetting]:
        """See ``ServerKind``."""
        del site
        return {}

    def read_cold_start(self, site: Site) -> Mapping[str, float]:
        """See ``ServerKind``."""
        del site
        return {}


@runtime_checkable
class Guarded(Protocol):
    """A kind whose servers do some things only for their owner, such as to map shared memory."""

    def owner_headers(self, site: Site) -> Mapping[str, str]:
        """Headers by which the server there knows its owner.

        Raises:
            ServerFailed: They are not known.
        """


def with_own_package(site: Site, environment: Mapping[str, str]) -> dict[str, str]:
    """A server's variables, with which it imports this package, and nothing else of the tests' interpreter.

    The package comes first, so that both sides of a comparison measure with the same code, also where they compare two
    revisions of this package.

    Args:
        site: In its folder a link to the package is made.
        environment: The variables so far, on top of the inherited ones.
    """
    place = site.folder / "package"
    place.mkdir()
    package = Path(pytest_gpuserve.__file__).resolve().parent
    (place / package.name).symlink_to(package)
    before = environment.get(PYTHONPATH) or os.environ.get(PYTHONPATH, "")
    return {**environment, PYTHONPATH: os.pathsep.join(filter(None, (str(place), before)))}


STRIPPED_PREFIXES: Final = ("MOSEC_", "PYTRITON_", "TRITONSERVER_", "LITSERVE_", "LIT_")
"""Inherited variables of these names would change a server behind the baseline's back; ``env=`` may set them."""


def inherited_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of this process that a server gets too."""
    return {name: value for name, value in environment.items() if not name.startswith(STRIPPED_PREFIXES)}


def digests(environment: Mapping[str, str]) -> str:
    """Variables as a baseline names them: in the order of their names, without what they say."""
    return " ".join(f"{name}={digest(environment[name])}" for name in sorted(environment))
