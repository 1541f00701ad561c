"""Interface of server kinds: a server can be started afresh, queried, counted and ended."""

from __future__ import annotations

import http.client
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, runtime_checkable

import pytest_gpuserve
from pytest_gpuserve.builds.relocation import PYTHONPATH
from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process.logs import excerpt
from pytest_gpuserve.process.ready import redirected, verified_tls
from pytest_gpuserve.process.secrets import secret_headers
from pytest_gpuserve.units import digest, format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.builds.relocation import Relocation
    from pytest_gpuserve.measure.counters import Counters, ServerSetting
    from pytest_gpuserve.process.ready import Ask

HOST = "127.0.0.1"

Argument = str | int | float | bool | None
"""A command line argument of an app, by name: ``inference_workers=2`` is ``--inference-workers=2``, ``debug=True`` is
``--debug``; False and None are left out."""


@dataclass(frozen=True, slots=True)
class Site:
    """Place of one start of a server.

    Args:
        folder: Its private folder, for sockets and the like; removed after its end.
        ports: Its free loopback ports, by the names of ``ServerKind.ports``.
        host: Its address; only a server that was not started here may have another one than the loopback's.
        tls: Whether connections use TLS, with a check of its certificate.
        ca_file: Certificates to trust instead of the system's; empty for those.
    """

    folder: Path
    ports: Mapping[str, int] = field(default_factory=dict, hash=False)
    host: str = HOST
    tls: bool = False
    ca_file: str = ""

    @property
    def port(self) -> int:
        """The port for requests: the first."""
        return next(iter(self.ports.values()))

    def url(self, path: str) -> str:
        """URL of a path on its HTTP port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}{path}"


@dataclass(frozen=True, slots=True)
class Launch:
    """Command of a server's process.

    Args:
        argv: Program and arguments.
        environment: Variables on top of the inherited ones.
        cwd: Its working folder.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: Path


class ServerKind(Protocol):
    """Kind of server with its arguments; the swap point between servers.

    `pytest_gpuserve.servers.command` is the shortest kind, and a template for a new one.
    """

    @property
    def name(self) -> str:
        """Name for people, such as ``mosec``."""

    @property
    def ports(self) -> tuple[str, ...]:
        """Names of its TCP ports, the one for requests first."""

    @property
    def health(self) -> str:
        """Path that answers 200 once the model may be tried; empty if the model is tried at once."""

    @property
    def python(self) -> str:
        """Interpreter with its libraries; empty if it runs elsewhere."""

    @property
    def default_model(self) -> str:
        """Default model of an inference; empty if the test has to name one."""

    def launch(self, site: Site) -> Launch:
        """Command that starts it at a site.

        Raises:
            ServerFailed: It cannot be started there.
        """

    def read_counters(self, site: Site) -> Counters | None:
        """Read its counters; None if it has none.

        Raises:
            ServerFailed: It did not answer, or its answer is invalid.
        """

    def read_settings(self, site: Site) -> Mapping[str, ServerSetting]:
        """Read the actual settings of the running server, with the requested ones.

        Raises:
            ServerFailed: It did not answer, or its answer is invalid.
        """

    def read_cold_start(self, site: Site) -> Mapping[str, float]:
        """Parts of its cold start that it reports, in seconds and in order; empty if it reports none.

        Raises:
            ServerFailed: It did not answer, or its answer is invalid.
        """

    def workload(self) -> Mapping[str, str]:
        """Facts that a baseline must have in common with it, as text; those of the checkout under test count."""

    def information(self) -> Mapping[str, str]:
        """Useful facts that may change, such as the hash of its source."""

    def relocated(self, relocation: Relocation) -> ServerKind:
        """Make the same server from another checkout, another interpreter's packages, or both.

        Raises:
            NotInRevision: That checkout has no such server, or the server would be the same there.
        """


class TellsNothing:
    """Base of kinds whose servers report no settings and no cold start."""

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
    """Kind with functions for the owner only, such as shared memory."""

    def owner_headers(self, site: Site) -> Mapping[str, str]:
        """Headers that identify the owner to the server.

        Raises:
            ServerFailed: The headers are unknown.
        """


def with_own_package(site: Site, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables with which a server can import this package, but nothing else of the tests' interpreter.

    The package comes first. So both builds of a comparison measure with the same code, even if they are two revisions
    of this package.

    Args:
        site: Place of the start; its folder gets a link to the package.
        environment: The variables so far, on top of the inherited ones.
    """
    place = site.folder / "package"
    place.mkdir()
    package = Path(pytest_gpuserve.__file__).resolve().parent
    (place / package.name).symlink_to(package)
    before = environment.get(PYTHONPATH) or os.environ.get(PYTHONPATH, "")
    return {**environment, PYTHONPATH: os.pathsep.join(filter(None, (str(place), before)))}


ANSWER_SECONDS: Final = 30.0
"""Longest wait for the answer to a query."""


class Reply(NamedTuple):
    """A server's answer."""

    status: int
    body: bytes
    location: str


def fetch(site: Site, ask: Ask, *, what: str) -> bytes:
    """Query a server, and return the body of its answer; see `query`.

    Raises:
        ServerFailed: No complete answer came in time, or its status is not 200.
    """
    reply = query(site, ask, what=what)
    if reply.status != http.client.OK:
        said = excerpt(reply.body.decode(errors="replace"), {**os.environ, **secret_headers(ask.headers)})
        raise ServerFailed(what, found=f"status {reply.status}{redirected(reply.location)}: {said}")
    return reply.body


def query(site: Site, ask: Ask, *, what: str) -> Reply:
    """Query a server besides its load; an answer of any status is returned.

    Args:
        site: Place of the server.
        ask: The query.
        what: Error text if the answer is missing.

    Raises:
        ServerFailed: No complete answer came in time.
    """
    connection = (
        http.client.HTTPSConnection(site.host, site.port, timeout=ANSWER_SECONDS, context=verified_tls(site.ca_file))
        if site.tls
        else http.client.HTTPConnection(site.host, site.port, timeout=ANSWER_SECONDS)
    )
    try:
        connection.request(ask.method, ask.path, ask.body or None, dict(ask.headers))
        answer = connection.getresponse()
        return Reply(answer.status, answer.read(), answer.headers.get("Location", ""))
    except TimeoutError:
        raise ServerFailed(what, found=f"no answer in {format_seconds(ANSWER_SECONDS)}") from None
    except (OSError, http.client.HTTPException) as problem:
        raise ServerFailed(what, found=str(problem) or repr(problem)) from None
    finally:
        connection.close()


STRIPPED_PREFIXES: Final = ("MOSEC_", "PYTRITON_", "TRITONSERVER_", "LITSERVE_", "LIT_")
"""Inherited variables that would change a server without a trace in its baseline; ``env=`` may set them."""


def inherited_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of this process that a server inherits."""
    return {name: value for name, value in environment.items() if not name.startswith(STRIPPED_PREFIXES)}


def digests(environment: Mapping[str, str]) -> str:
    """Variables in a baseline: in the order of their names, with hashed values."""
    return " ".join(f"{name}={digest(environment[name])}" for name in sorted(environment))
