"""One request to a server that runs, without a load."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gpuserve.servers.instance import Instance
    from pytest_gpuserve.trial.handle import Target

SECONDS = 120.0


def ask(instance: Instance, target: Target) -> tuple[int, bytes]:
    """Send a request once.

    Returns:
        Status and body.

    Raises:
        OSError: The server does not answer.
    """
    request = target.requests[0]
    return _exchange(instance, request.method, request.path, request.body, dict(request.headers))


def metadata(instance: Instance, path: str) -> Any:  # noqa: ANN401 -- whatever JSON it is
    """Ask for something that is answered in JSON.

    Raises:
        OSError: The server does not answer.
        ValueError: Not with 200, or not in JSON.
    """
    status, body = _exchange(instance, "GET", path, b"", {})
    if status != http.client.OK:
        raise ValueError(f"status {status}: {body[:200]!r}")
    return json.loads(body)


def _exchange(instance: Instance, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(instance.site.host, instance.site.port, timeout=SECONDS)
    try:
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
