"""What the arguments of ``remote_server`` mean: one server that somebody else runs, or several replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.url import endpoint_of
from pytest_gpuserve.servers.remote import Remote, Replicas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.load.wire import Endpoint
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


def remote_of(url: str | Sequence[str], options: RemoteOptions) -> Remote:
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
        Remote(
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
