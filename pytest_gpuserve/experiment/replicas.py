"""A load of several replicas: how many workers it takes, and what each replica did in it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, cast

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.gate.share import Share
from pytest_gpuserve.load.driver import most_under_way
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.load.totals import added, shares
from pytest_gpuserve.load.url import endpoint_of
from pytest_gpuserve.measure.histogram import merge
from pytest_gpuserve.measure.replicas import replicas_of
from pytest_gpuserve.measure.window import ReplicaWindow
from pytest_gpuserve.servers.remote import RemoteServer, Replicas
from pytest_gpuserve.units import format_fraction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.totals import Totals
    from pytest_gpuserve.load.wire import Endpoint, Tick
    from pytest_gpuserve.measure.window import Window
    from pytest_gpuserve.servers.metric_names import MetricNames

HELP: Final = "http://HOST:PORT or https://HOST:PORT"


@dataclass(frozen=True)
class RemoteOptions:
    """What is said of all replicas alike.

    Args:
        counters: Names of their Prometheus metrics; None for none.
        metrics_port: Where those are, for all or one for each; 0 for the port of HTTP.
        grpc_port: Where they speak gRPC, for all or one for each; 0 where they do not.
        ca_file: Certificates to trust instead of the system's; empty for those.
        model: That an inference is for.
    """

    counters: MetricNames | None = None
    metrics_port: int | Sequence[int] = 0
    grpc_port: int | Sequence[int] = 0
    ca_file: str = ""
    model: str = ""


def remote_of(url: str | Sequence[str], options: RemoteOptions) -> RemoteServer:
    """Return the server at a URL, or the replicas at several.

    Args:
        url: One, or a list of which each is a replica; a list of one is that one.
        options: What else is said.

    Raises:
        UsageProblem: One is no such URL, or they do not go together; no password or query of one is shown.
    """
    urls = _listed(url)
    endpoints = [_endpoint(each) for each in urls]
    if options.ca_file and all(endpoint.tls is None for endpoint in endpoints):
        raise UsageProblem(
            f"remote_server({_shown(urls[0])!r}, ca_file=...): without TLS no certificate is looked at",
            remedies=["https://HOST:PORT, or leave out ca_file=..."],
        )
    metrics_ports = _for_each("metrics_port", options.metrics_port, len(urls))
    grpc_ports = _for_each("grpc_port", options.grpc_port, len(urls))
    servers = [
        RemoteServer(
            endpoint.host,
            endpoint.port,
            tls=endpoint.tls is not None,
            ca_file=options.ca_file if endpoint.tls is not None else "",
            grpc_port=grpc_port,
            counters=options.counters,
            metrics_port=metrics_port,
            default_model=options.model,
        )
        for endpoint, grpc_port, metrics_port in zip(endpoints, grpc_ports, metrics_ports, strict=True)
    ]
    return servers[0] if len(servers) == 1 else Replicas.of(servers)


def _listed(url: object) -> list[str]:
    if isinstance(url, str):
        return [url]
    # Not shown as it is: it may be a URL with a password, of another type.
    if not isinstance(url, (list, tuple)):
        shown = "None" if url is None else f"a {type(url).__name__}"
        raise UsageProblem(f"remote_server({shown}) is no URL, and no list of them", remedies=[HELP])
    if not url:
        raise UsageProblem("remote_server([]): a server has one URL at least", remedies=[HELP])
    others = [type(each).__name__ for each in url if not isinstance(each, str)]
    if others:
        raise UsageProblem("remote_server([...]) takes URLs as text", found=f"a {others[0]}", remedies=[HELP])
    return list(url)


def _endpoint(url: str) -> Endpoint:
    shown = _shown(url)
    if "@" in url:
        raise UsageProblem(
            f"remote_server({shown!r}): neither a user nor a path belongs in it",
            remedies=[HELP, 'for a user: server.post(..., headers={"Authorization": ...})'],
        )
    try:
        endpoint, path = endpoint_of(url)
    except UsageProblem as problem:
        raise UsageProblem(f"remote_server({shown!r}) is no URL", found=problem.found, remedies=[HELP]) from None
    if endpoint.protocol != "http" or path != "/":
        raise UsageProblem(
            f"remote_server({shown!r}): the server alone, its paths are those of the requests", remedies=[HELP]
        )
    return endpoint


def _shown(url: str) -> str:
    """A URL without what may be a secret in it: its user, however it is written, and its query."""
    user, at, rest = url.rpartition("@")
    if at:
        scheme = next((name for name in ("http://", "https://") if user.startswith(name)), "")
        url = f"{scheme}...@{rest}"
    return url.partition("?")[0].partition("#")[0]


def _for_each(name: str, given: int | Sequence[int], count: int) -> Sequence[int]:
    if not isinstance(given, (list, tuple)):
        # Whether it is a port is seen where it is used.
        return [cast("int", given)] * count
    if len(given) != count:
        raise UsageProblem(
            f"remote_server({name}=[...]) names one for each of {count} URL{'s' if count > 1 else ''}",
            found=f"{len(given)} of them",
            remedies=[f"{name}=PORT where all have the same"],
        )
    return given


ERROR: Final = 0.01
"""Chance that a replica of several, each of which fails as often as is allowed, is said to fail more often."""


def for_replicas(shape: LoadShape, *targets: Target) -> LoadShape:
    """Return a load that can be dealt out evenly to the replicas of each of these deployments.

    Each worker goes to one replica, so that their number is a multiple of the replicas. The one worker that a load has
    unless its test says otherwise becomes so many.

    Args:
        shape: The load.
        targets: What is sent, to whom.

    Raises:
        UsageProblem: Another number of workers, or the number of users, cannot be dealt out.
    """
    replicas = math.lcm(*(target.replicas for target in targets))
    if replicas == 1:
        return shape
    most = most_under_way(shape.schedule)
    if most is not None and most < replicas:
        raise UsageProblem(
            f"{_counted(most, 'request')} at a time cannot be shared by {replicas} replicas: each needs one at least",
            remedies=[f"load(..., concurrency={replicas}), or a multiple of it", "fewer URLs: remote_server([...])"],
        )
    workers = replicas if shape.processes == 1 else shape.processes
    if workers % replicas:
        fewer = workers - workers % replicas
        would_do = [number for number in (fewer, fewer + replicas) if number]
        raise UsageProblem(
            f"load(processes={workers}) cannot be dealt out evenly to {replicas} replicas: each engine goes to one",
            remedies=[f"processes={' or '.join(map(str, would_do))}", "leave out processes=...: one for each replica"],
        )
    return replace(shape, processes=workers)


def warmup_of(shape: LoadShape, replicas: int) -> tuple[Schedule, int]:
    """What warms up the servers of a load that is measured as a whole, and how many workers that takes.

    Args:
        shape: The load.
        replicas: How many servers there are, each of which one worker at least goes to, with a user at least.
    """
    schedule = shape.warmup
    if isinstance(schedule, Closed) and schedule.users < replicas:
        schedule = Closed(replicas, schedule.think_seconds)
    return schedule, replicas


@dataclass
class ReplicaShares:
    """Finds out what each replica did by what the workers report that went to it.

    Args:
        names: Of the replicas, in the order of the plan; empty where one server has the load alone.
    """

    names: tuple[str, ...] = ()
    _replica_of: dict[str, str] = field(default_factory=dict)

    def hear(self, tick: Tick) -> None:
        """Learn from the first tick of a load, in which each worker has a part, who goes where."""
        if self.names and tick.number == 0:
            self._replica_of = {worker: self.names[part % len(self.names)] for part, worker in enumerate(tick.workers)}

    def window(self, ticks: Sequence[Tick]) -> tuple[ReplicaWindow, ...]:
        """What each replica did in a window of these ticks; empty where that is not known, and of one server."""
        known = shares(ticks) if self.names else {}
        if not known or not known.keys() <= self._replica_of.keys():
            return ()
        found: dict[str, list[Totals]] = {name: [] for name in self.names}
        for worker, totals in known.items():
            found[self._replica_of[worker]].append(totals)
        return tuple(
            ReplicaWindow(
                name,
                requests=sum(totals.requests for totals in each),
                errors=added(totals.errors for totals in each),
                latency=merge(totals.latency.histogram for totals in each),
            )
            for name, each in found.items()
        )

    def failing(self, tick: Tick) -> str:
        """Which replicas failed a request in a tick, for a message; empty where that is not known."""
        names = dict.fromkeys(
            self._replica_of[worker]
            for worker, part in tick.workers.items()
            if part.errors and worker in self._replica_of
        )
        return f" of {', '.join(names)}" if names else ""

    def problems(self, windows: Sequence[Window], *, allowed_errors: float) -> list[Reason]:
        """Why nothing may be concluded from what was measured: a replica that has no part in it, or fails too much.

        Args:
            windows: What was measured.
            allowed_errors: Share of each replica's requests that may fail; that more do has to be shown, for among the
                few requests of one of many a single failure is a large share.
        """
        if not self.names or not windows:
            return []
        if any(not window.replicas for window in windows):
            text = f"replicas: what each of the {len(self.names)} did is not known"
            return [Reason(ReasonKind.NOT_COUNTED, text)]
        found = []
        for replica in replicas_of(windows):
            sent = replica.requests + replica.failed
            kinds = "; ".join(f"{kind}: {count}" for kind, count in sorted(replica.errors.items()))
            if not replica.requests:
                failed = f", and {_counted(replica.failed, 'request')} to it failed: {kinds}" if kinds else ""
                text = f"replica {replica.name}: it answered nothing{failed}"
                found.append(Reason(ReasonKind.REPLICA, text, about=replica.name))
            elif self._fails(replica.failed, sent, allowed_errors):
                share, may = format_fraction(replica.failed / sent), format_fraction(allowed_errors)
                text = (
                    f"replica {replica.name}: {replica.failed} of {sent} requests to it ({share}) failed, {may} may:"
                    f" {kinds}"
                )
                found.append(Reason(ReasonKind.REPLICA, text, about=replica.name))
        return found

    def _fails(self, failed: int, sent: int, allowed: float) -> bool:
        """Whether more of these requests failed than may, by the exact binomial limit."""
        if not allowed or not failed:
            return failed > 0
        share = Share(failed / sent, sent)
        return share.value > allowed and share.chance_of_so_many(allowed) <= ERROR / len(self.names)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"
