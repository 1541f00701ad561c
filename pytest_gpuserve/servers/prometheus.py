"""Reads Prometheus text from a server on this machine."""

from __future__ import annotations

import http.client
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from pytest_gpuserve.errors import ServerFailed

if TYPE_CHECKING:
    import ssl

TIMEOUT_SECONDS = 2.0

_FREE = frozenset({"gauge", "summary"})
"""Types of metrics that may have any value: below zero, or none as the quantiles of a summary that saw nothing."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a scrape."""

    name: str
    labels: dict[str, str]
    value: float


def scrape(
    port: int, path: str = "/metrics", *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> list[Sample]:
    """Fetch and parse a metrics page.

    Args:
        port: Where it is.
        path: What it is called there.
        host: Whose it is.
        tls: What checks the certificate of a server that speaks TLS.

    Raises:
        ServerFailed: There is no answer, no 200, or no Prometheus text; or a count is negative or not a number.
    """
    where = f"http{'s' if tls else ''}://{host}:{port}{path}"
    connection = (
        http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        if tls is None
        else http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=tls)
    )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as problem:
        raise ServerFailed(f"the counters at {where} could not be read", found=str(problem) or repr(problem)) from None
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise ServerFailed(f"the counters at {where} could not be read", found=f"status {answer.status}")
    try:
        return read_samples(body.decode())
    except ValueError as problem:
        raise ServerFailed(
            f"the counters at {where} are not Prometheus text", found=str(problem) or repr(problem)
        ) from None


def read_samples(text: str) -> list[Sample]:
    """Parse a metrics page.

    Raises:
        ValueError: It is no Prometheus text; or a count is negative or not a number.
    """
    try:
        families = list(text_string_to_metric_families(text))
    except LookupError as problem:
        # The parser looks at the first letter of a name before it knows that there is one.
        raise ValueError(f"a name is missing ({problem})") from None
    for family in families:
        for sample in family.samples:
            if family.type not in _FREE and not is_count(sample.value):
                raise ValueError(f"{sample.name}{sample.labels} is {sample.value}")
    return [Sample(sample.name, dict(sample.labels), sample.value) for family in families for sample in family.samples]


def is_count(value: float) -> bool:
    """Whether something that is counted or timed can have this value."""
    return math.isfinite(value) and value >= 0
