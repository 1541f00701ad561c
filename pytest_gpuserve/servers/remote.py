"""A server that runs already: it is never started or stopped here."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pytest_gpuserve.errors import NotInRevision, ServerFailed, UsageProblem
from pytest_gpuserve.process.ports import is_here, listeners
from pytest_gpuserve.process.ready import http_probe, verified_tls, wait
from pytest_gpuserve.process.secrets import secret_headers, without_secrets
from pytest_gpuserve.servers.base import Site, TellsNothing
from pytest_gpuserve.servers.instance import Instance, Readiness
from pytest_gpuserve.units import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pytest_gpuserve.builds.relocation import Relocation
    from pytest_gpuserve.measure.counters import Counters, ServerSetting
    from pytest_gpuserve.process.ready import Ask
    from pytest_gpuserve.servers.metric_names import MetricNames


@dataclass(frozen=True)
class RemoteServer(TellsNothing):
    """A server at an address.

    It cannot be started afresh, so all its measurements share the luck of its one start. A comparison cannot
    distinguish that luck from a change.

    Args:
        host: Name or address.
        port: Port of HTTP.
        tls: Whether connections use TLS; its certificate is always checked.
        ca_file: Certificates to trust instead of the system's; empty for those.
        grpc_port: Port of gRPC; 0 without gRPC.
        counters: Names of its Prometheus metrics; None if it has none or they cannot be reached.
        metrics_port: Port of the metrics; 0 for the port of HTTP.
        default_model: The model of requests, for KServe v2 and OpenAI's API.

    Raises:
        UsageProblem: A port is out of range.
    """

    host: str
    port: int
    tls: bool = False
    ca_file: str = ""
    grpc_port: int = 0
    counters: MetricNames | None = None
    metrics_port: int = 0
    default_model: str = ""
    health: str = ""
    name: str = field(default="remote", init=False)
    python: str = field(default="", init=False)

    def __post_init__(self) -> None:
        for name in ("grpc_port", "metrics_port"):
            port = getattr(self, name)
            if type(port) is not int or not 0 <= port < 1 << 16:
                raise UsageProblem(f"remote_server({name}=...) must be a port's number, not {port!r}")

    @property
    def ports(self) -> tuple[str, ...]:
        """See ``ServerKind``."""
        return ("http", "grpc") if self.grpc_port else ("http",)

    @property
    def address(self) -> str:
        """Its address for people: ``host:port``, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def site(self) -> Site:
        """Its place, without a folder."""
        ports = {"http": self.port, **({"grpc": self.grpc_port} if self.grpc_port else {})}
        return Site(Path(os.devnull), ports, host=self.host, tls=self.tls, ca_file=self.ca_file)

    def launch(self, site: Site) -> NoReturn:
        """See ``ServerKind``; it is never started here.

        Raises:
            ServerFailed: Always.
        """
        del site
        raise ServerFailed(f"the remote server {self.address} cannot be started from here")

    def read_counters(self, site: Site) -> Counters | None:
        """See ``ServerKind``."""
        if self.counters is None:
            return None
        if self.metrics_port:
            # Metrics on a port of their own are usually internal, without TLS.
            site = replace(site, ports={"http": self.metrics_port}, tls=False)
        return self.counters.fetch(site)

    def read_settings(self, site: Site) -> Mapping[str, ServerSetting]:
        """See ``ServerKind``; its models, if their list is named."""
        return {} if self.counters is None else self.counters.read_models(site)

    def workload(self) -> Mapping[str, str]:
        """See ``ServerKind``; its address does not belong to it, so that a server may move."""
        return {"server": self.name, "tls": str(self.tls)}

    def information(self) -> Mapping[str, str]:
        """See ``ServerKind``."""
        return {"host": self.host, "port": str(self.port)}

    def relocated(self, relocation: Relocation) -> NoReturn:
        """See ``ServerKind``.

        Raises:
            NotInRevision: Always, because a running server is the same in both builds.
        """
        raise NotInRevision(
            f"the remote server {self.address} is the same in both builds; {relocation.revision} has no other",
            remedies=["compare two of them in one test: duel(remote_server(URL_A).post(...), remote_server(URL_B)...)"],
        )


@contextmanager
def reached(
    kind: RemoteServer, ask: Ask, beside: Callable[[], None] | None = None, *, timeout_seconds: float
) -> Iterator[Instance]:
    """Wait until the model of a running server answers; the server stays as it is.

    Args:
        kind: The server.
        ask: The request that must be answered with a 2xx status.
        beside: Called before the wait, as for a server that is started.
        timeout_seconds: Longest wait.

    Raises:
        ServerFailed: It did not answer in time, or refuses the request.
    """
    if beside is not None:
        beside()
    deadline = Deadline.after(timeout_seconds)
    probe = http_probe(
        kind.host,
        kind.port,
        ask,
        Readiness(kind.name, ask, None, timeout_seconds).accept,
        deadline=deadline,
        tls=verified_tls(kind.ca_file) if kind.tls else None,
    )
    try:
        wait([probe], None, deadline, what=f"the answer of {kind.address} to {ask.path}")
    except ServerFailed as problem:
        # The last status may be an answer that repeats the request.
        problem.found = without_secrets(problem.found, {**os.environ, **secret_headers(ask.headers)})
        raise
    # If it runs on this machine, its computation is not a disturbance of the measurement.
    here = is_here(kind.host)
    site = kind.site()
    yield Instance(
        kind,
        site,
        None,
        None,
        settings=kind.read_settings(site),
        members=lambda: listeners(kind.port) if here else frozenset(),
    )
