"""Several servers alike that somebody else runs, loaded as one deployment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import combinations
from typing import TYPE_CHECKING, Any

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.measure.counters import together
from pytest_gpuserve.servers.remote import Remote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.servers.base import Site
    from pytest_gpuserve.servers.instance import Instance


@dataclass(frozen=True)
class Replicas(Remote):
    """Several servers that share a load; where only one can be meant, as for a single question, it is the first.

    Args:
        others: All but the first, which the other fields are of.

    Raises:
        UsageProblem: Two of them are the same server, or only some speak gRPC.
    """

    others: tuple[Remote, ...] = ()

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
    def of(cls, servers: Sequence[Remote]) -> Replicas:
        """Make one deployment of these servers, two at least.

        Raises:
            UsageProblem: As for the class.
        """
        return cls(**_of_one(servers[0]), others=tuple(servers[1:]))

    def each(self) -> tuple[Remote, ...]:
        """See ``Remote``; the first of the URLs first."""
        return (Remote(**_of_one(self)), *self.others)

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


def _read(server: Remote) -> Counters:
    try:
        counters = server.read_counters(server.site())
    except ServerFailed as problem:
        problem.summary = f"replica {server.address}: {problem.summary}"
        raise
    assert counters is not None
    return counters


def _of_one(server: Remote) -> dict[str, Any]:
    """The arguments that make a server of its own of one, or of the first of several."""
    return {each.name: getattr(server, each.name) for each in fields(Remote) if each.init}
