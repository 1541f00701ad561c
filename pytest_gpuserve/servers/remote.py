"""A server that somebody else runs: it is never started or stopped here."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_gpuserve.errors import NotInRevision, ServerFailed, UsageProblem
from pytest_gpuserve.measure.counters import together
from pytest_gpuserve.process.deadline import Deadline
from pytest_gpuserve.process.ports import is_here, listeners
from pytest_gpuserve.process.ready import HttpRequest, NotReady, http_probe, verified_tls, wait_for
from pytest_gpuserve.process.secrets import secret_headers, without_secrets
from pytest_gpuserve.servers.base import Site, TellsNothing
from pytest_gpuserve.servers.instance import Instance, verdict_on_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_gpuserve.builds.relocation import Relocation
    from pytest_gpuserve.measure.counters import Counters, ServerSetting
    from pytest_gpuserve.process.ready import Probe
    from pytest_gpuserve.servers.base import Ask, Transport
    from pytest_gpuserve.servers.metric_names import MetricNames


PROBE_SECONDS = 5.0


@dataclass(frozen=True)
class RemoteServer(TellsNothing):
    """A server at an address.

    It cannot be started afresh, so all that is measured of it shares the luck of its one start, and a comparison cannot
    tell that luck from a change.

    Args:
        host: Name or address.
        port: Of HTTP.
        tls: Whether over TLS; its certificate is always checked.
        ca_file: Certificates to trust instead of the system's; empty for those.
        grpc_port: Where it speaks gRPC; 0 where it does not.
        counters: Names of its Prometheus metrics; None where it has none or they cannot be reached.
        metrics_port: Where those are; 0 for the port of HTTP.
        default_model: The model that requests are for, of KServe v2 and of OpenAI's API.

    Raises:
        UsageProblem: A port is none.
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
    transport: Transport = field(default="http", init=False)

    def __post_init__(self) -> None:
        for name in ("grpc_port", "metrics_port"):
            port = getattr(self, name)
            if type(port) is not int or not 0 <= port < 1 << 16:
                raise UsageProblem(f"remote_server({name}=...) is a port's number, not {port!r}")

    @property
    def ports(self) -> tuple[str, ...]:
        """See ``ServerKind``."""
        return ("http", "grpc") if self.grpc_port else ("http",)

    @property
    def address(self) -> str:
        """What people call it: ``host:port``, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def each(self) -> tuple[RemoteServer, ...]:
        """The servers that it is: as a rule one."""
        return (self,)

    def site(self) -> Site:
        """Where it is; there is no folder in which it would keep anything."""
        ports = {"http": self.port, **({"grpc": self.grpc_port} if self.grpc_port else {})}
        return Site(Path(os.devnull), ports, host=self.host, tls=self.tls, ca_file=self.ca_file)

    def launch(self, site: Site) -> NoReturn:
        """See ``ServerKind``; it is never started by us.

        Raises:
            ServerFailed: Always.
        """
        del site
        raise ServerFailed(f"the remote server {self.address} is not ours to start")

    def read_counters(self, site: Site) -> Counters | None:
        """See ``ServerKind``."""
        if self.counters is None:
            return None
        # Metrics at a port of their own are as a rule inside, without TLS.
        tls = verified_tls(self.ca_file) if self.tls and not self.metrics_port else None
        return self.counters.fetch(self.metrics_port or site.port, host=self.host, tls=tls)

    def read_settings(self, site: Site) -> Mapping[str, ServerSetting]:
        """See ``ServerKind``; its models (of replicas the first one's), where it is said where they are listed."""
        if self.counters is None:
            return {}
        return self.counters.read_models(
            site.port, host=self.host, tls=verified_tls(self.ca_file) if self.tls else None
        )

    def workload(self) -> Mapping[str, str]:
        """See ``ServerKind``; its address is no part of it, so that a server may move."""
        return {"server": self.name, "tls": str(self.tls)}

    def information(self) -> Mapping[str, str]:
        """See ``ServerKind``."""
        return {"host": self.host, "port": str(self.port)}

    def relocated(self, relocation: Relocation) -> NoReturn:
        """See ``ServerKind``.

        Raises:
            NotInRevision: Always: one server that somebody else runs is the same on both sides.
        """
        raise NotInRevision(
            f"the remote server {', '.join(each.address for each in self.each())} is the same on both sides;"
            f" {relocation.revision} has no other",
            remedies=["compare two of them in one test: duel(remote_server(URL_A).post(...), remote_server(URL_B)...)"],
        )


@contextmanager
def reached(
    kind: RemoteServer, ask: Ask, beside: Callable[[], None] | None = None, *, timeout_seconds: float
) -> Iterator[Instance]:
    """Wait until the model of a server that somebody else runs answers; it is left as it is.

    Args:
        kind: The server; of several replicas all of them must answer.
        ask: The request that must be answered with a 2xx status.
        beside: Called before that, as for a server that is started.
        timeout_seconds: How long to wait for that.

    Raises:
        ServerFailed: It did not answer in time, or refuses the request; of several replicas it says which.
    """
    if beside is not None:
        beside()
    replicas = kind.each()
    who = kind.address if len(replicas) == 1 else f"each of {len(replicas)} replicas"
    probe = _each_once([_probe(each, ask, timeout_seconds, alone=len(replicas) == 1) for each in replicas])
    try:
        wait_for(probe, Deadline.after(timeout_seconds), what=f"an answer of {who} to {ask.path}")
    except ServerFailed as problem:
        # What was seen last may be an answer that repeats the request.
        problem.found = without_secrets(problem.found, {**os.environ, **secret_headers(ask.headers)})
        raise
    # Where it runs on this machine, what it computes is no disturbance of the measurement.
    ports = [each.port for each in replicas if is_here(each.host)]
    yield Instance(
        kind,
        kind.site(),
        None,
        None,
        settings=kind.read_settings(kind.site()),
        members=lambda: frozenset[int]().union(*map(listeners, ports)),
    )


def _probe(server: RemoteServer, ask: Ask, timeout_seconds: float, *, alone: bool) -> Probe:
    name = server.name if alone else f"{server.name} {server.address}"

    def accept(status: int, body: bytes) -> str | None:
        return verdict_on_status(name, ask, status, body)

    return http_probe(
        server.host,
        server.port,
        HttpRequest(path=ask.path, method=ask.method, body=ask.body, headers=ask.headers),
        accept,
        timeout_seconds=min(PROBE_SECONDS, timeout_seconds),
        tls=verified_tls(server.ca_file) if server.tls else None,
    )


def _each_once(probes: list[Probe]) -> Probe:
    """A probe that is content when each of these was once; it tells of all that are not yet."""
    waiting = list(probes)

    def probe() -> NotReady | None:
        seen = [(each, each()) for each in waiting]
        waiting[:] = [each for each, answer in seen if answer is not None]
        reasons = [answer.reason for _, answer in seen if answer is not None]
        return NotReady("; ".join(reasons)) if reasons else None

    return probe


@dataclass(frozen=True)
class Replicas(RemoteServer):
    """Several servers that share a load; where only one can be meant, as for a single question, it is the first.

    Args:
        others: All but the first, which the other fields are of.

    Raises:
        UsageProblem: Two of them are the same server, or only some speak gRPC.
    """

    others: tuple[RemoteServer, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for one, other in combinations(self.each(), 2):
            if one.host != other.host:
                continue
            if one.port == other.port:
                raise UsageProblem(
                    f"remote_server([...]): {one.address} is named twice",
                    remedies=["name each replica once: a server that is loaded twice is slower than its like"],
                )
            for name, what in (("grpc_port", "speak gRPC"), ("metrics_port", "have their metrics")):
                port = getattr(one, name)
                if port and port == getattr(other, name):
                    raise UsageProblem(
                        f"remote_server([...], {name}={port}): {one.address} and {other.address} cannot both"
                        f" {what} at one port of {one.host}",
                        remedies=[f"name one for each URL, in their order: {name}=[{port}, {port + 1}]"],
                    )
        if len({each.ports for each in self.each()}) > 1:
            raise UsageProblem(
                "remote_server([...], grpc_port=[...]): some of the replicas speak gRPC, and some do not",
                remedies=["name a port above 0 for each URL, or leave out grpc_port=..."],
            )

    @classmethod
    def of(cls, servers: Sequence[RemoteServer]) -> Replicas:
        """Make one deployment of these servers, two at least.

        Raises:
            UsageProblem: As for the class.
        """
        return cls(**_of_one(servers[0]), others=tuple(servers[1:]))

    def each(self) -> tuple[RemoteServer, ...]:
        """See ``RemoteServer``; the first of the URLs first."""
        return (RemoteServer(**_of_one(self)), *self.others)

    def read_counters(self, site: Site) -> Counters | None:
        """See ``ServerKind``; those of all together, with those of each as parts by its address.

        Raises:
            ServerFailed: As for one server; says which.
        """
        del site
        if self.counters is None:
            return None
        servers = self.each()
        # At the same time: one after the other they would be of different stretches of the load.
        with ThreadPoolExecutor(len(servers)) as pool:
            readings = list(pool.map(_read, servers))
        return together({server.address: reading for server, reading in zip(servers, readings, strict=True)})

    def workload(self) -> Mapping[str, str]:
        """See ``ServerKind``; how many they are is part of it, their addresses are not."""
        over_tls = {str(each.tls) for each in self.each()}
        return {
            **super().workload(),
            "tls": over_tls.pop() if len(over_tls) == 1 else "of some",
            "replicas": str(len(self.each())),
        }

    def information(self) -> Mapping[str, str]:
        """See ``ServerKind``."""
        return {"addresses": ", ".join(each.address for each in self.each())}


def sites_of(instance: Instance) -> tuple[Site, ...]:
    """Where the requests of a load go: to one server, or to several replicas."""
    kind = instance.kind
    return tuple(each.site() for each in kind.each()) if isinstance(kind, Replicas) else (instance.site,)


def addresses_of(instance: Instance) -> tuple[str, ...]:
    """What several replicas are called, in the order of ``sites_of``; empty of one server."""
    kind = instance.kind
    return tuple(each.address for each in kind.each()) if isinstance(kind, Replicas) else ()


def _read(server: RemoteServer) -> Counters:
    try:
        counters = server.read_counters(server.site())
    except ServerFailed as problem:
        problem.summary = f"replica {server.address}: {problem.summary}"
        raise
    assert counters is not None
    return counters


def _of_one(server: RemoteServer) -> dict[str, Any]:
    """The arguments that make a server of its own of one, or of the first of several."""
    return {each.name: getattr(server, each.name) for each in fields(RemoteServer) if each.init}
