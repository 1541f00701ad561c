"""An S3 on 127.0.0.1: moto's server, which speaks the real protocol, behind faults that a test asks for.

Run as a program it prints its port, and ends when its standard input is closed; ``s3_server`` does that for a test.
Requests are served one after the other, as if each were atomic, which in moto a write with a condition is not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

CONTROL: Final = "/-faults"
SIGNED: Final = "AWS4-HMAC-SHA256 Credential=TEST/20250101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
"""Whoever signs nothing may read nothing; whether a signature is right moto does not ask."""

SECRET: Final = "kq7-do-not-show-this-secret-Zx31"

DENIED: Final = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
BROKEN: Final = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"


@dataclass
class Faults:
    """What goes wrong.

    Args:
        denied: Methods that are not allowed.
        unconditional: Whether conditions on writes are ignored, as storages do that do not know them.
        cut: Answers whose key ends so are cut off in the middle; of none if it is empty.
        silent: Whether nothing is answered at all.
        lost: How many writes are done and then answered with an error.
        seen: Requests so far, as ``PUT /bucket/key``.
    """

    denied: list[str] = field(default_factory=list)
    unconditional: bool = False
    cut: str = ""
    silent: bool = False
    lost: int = 0
    seen: list[str] = field(default_factory=list)


class Faulty:
    """A WSGI application before another one.

    Args:
        application: The other one.
    """

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._faults = Faults()
        self._alone = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Serve a request."""
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == CONTROL:
            return self._control(environ, start)
        faults = self._faults
        faults.seen.append(f"{method} {path}")
        if faults.silent:
            threading.Event().wait()
        if method in faults.denied:
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"" if method == "HEAD" else DENIED]
        if faults.unconditional and method == "PUT":
            environ.pop("HTTP_IF_MATCH", None)
            environ.pop("HTTP_IF_NONE_MATCH", None)
        begun: list[Any] = []
        with self._alone:
            body = b"".join(self._application(environ, lambda *arguments: begun.append(arguments)))
        if method == "PUT" and faults.lost:
            faults.lost -= 1
            start("500 Internal Server Error", [("Content-Type", "application/xml")])
            return [BROKEN]
        start(*begun[-1])
        return [body[: len(body) // 2] if faults.cut and method == "GET" and path.endswith(faults.cut) else body]

    def _control(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        seen = self._faults.seen
        self._faults = Faults(**json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))))
        start("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(seen).encode()]


def main() -> None:
    """Serve until standard input is closed."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    class Quiet(MotoRequestHandler):
        def log(self, *_: object) -> None:
            """Say nothing: what a test shows is its own."""

    application = Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()


@dataclass(frozen=True)
class S3:
    """Such a server, as a test sees it; no library of S3's is between them.

    Args:
        port: Its own.
    """

    port: int

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which AWS's libraries use it, and no settings of whoever runs the tests."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "AKIATESTTESTTESTTEST",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        }

    def put(self, path: str, data: bytes = b"") -> None:
        """Write ``bucket/key``, or make ``bucket``."""
        self._ask("PUT", f"/{path}", data)

    def get(self, path: str) -> bytes | None:
        """Read ``bucket/key``; None if it is not there."""
        try:
            return self._ask("GET", f"/{path}")
        except urllib.error.HTTPError as problem:
            with problem:
                if problem.code == 404:
                    return None
                raise

    def faults(self, **faults: object) -> list[str]:
        """Set what goes wrong from now on, nothing by default; returns the requests since the last time."""
        seen: list[str] = json.loads(self._ask("POST", CONTROL, json.dumps(faults).encode()))
        return seen

    def _ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/octet-stream", "Authorization": SIGNED}
        request = urllib.request.Request(f"{self.endpoint}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            body: bytes = answer.read()
        return body


@contextmanager
def s3_server() -> Iterator[S3]:
    """Run a server for the block."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield S3(int(process.stdout.readline()))
        finally:
            process.kill()


if __name__ == "__main__":
    main()
