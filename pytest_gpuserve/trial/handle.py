"""What a test holds of a server: a deployment that can be started afresh, and requests for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from pytest_gpuserve.load.request import Expect, Request
from pytest_gpuserve.servers.base import Ask, ServerKind
from pytest_gpuserve.servers.instance import Instance

Starter = Callable[[ServerKind, Ask], AbstractContextManager[Instance]]
"""Starts a server of a kind and ends it with its block; made by the session, which knows device and log folder."""


@dataclass(frozen=True)
class ServerHandle:
    """A deployment: not a running process but the means to start one, because fresh starts are the unit of evidence.

    Args:
        kind: The server with its arguments.
        starter: How it is started here.
    """

    kind: ServerKind
    starter: Starter = field(repr=False, compare=False)

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | str = b"",
        headers: Mapping[str, str] | None = None,
        expect: Expect | str | None = None,
    ) -> Target:
        """Describe a request to this server, for ``load``.

        Args:
            method: Its HTTP method.
            path: Its path.
            body: What is sent; text is encoded as UTF-8.
            headers: On top of ``Host`` and ``Content-Length``.
            expect: The exact body of a right answer, or a function of the body that raises or returns False for a
                wrong one; None checks only the status.

        Raises:
            UsageProblem: A part cannot stand in an HTTP request.
        """
        return Target(
            self,
            Request(
                method=method,
                path=path,
                body=body.encode() if isinstance(body, str) else body,
                headers=dict(headers or {}),
                expect=expect.encode() if isinstance(expect, str) else expect,
            ),
        )

    def post(
        self,
        path: str,
        *,
        body: bytes | str = b"",
        headers: Mapping[str, str] | None = None,
        expect: Expect | str | None = None,
    ) -> Target:
        """Describe a POST; see ``request``."""
        return self.request("POST", path, body=body, headers=headers, expect=expect)

    def get(self, path: str, *, headers: Mapping[str, str] | None = None, expect: Expect | str | None = None) -> Target:
        """Describe a GET; see ``request``."""
        return self.request("GET", path, headers=headers, expect=expect)


@dataclass(frozen=True)
class Target:
    """A request and the deployment that it goes to."""

    server: ServerHandle
    request: Request

    def started(self) -> AbstractContextManager[Instance]:
        """Start the deployment afresh; ready when it answers this request."""
        request = self.request
        return self.server.starter(self.server.kind, Ask(request.method, request.path, request.body, request.headers))
