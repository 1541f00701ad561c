"""Certificates for servers under test, made anew for each run by the ``openssl`` command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    """Files of an authority and a server.

    Args:
        ca_file: The authority's certificate, which is signed by itself and which a client has to trust.
        server_file: The server's certificate and key, for the name ``localhost`` and the address 127.0.0.1.
    """

    ca_file: str
    server_file: str


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and a server's certificate in this folder; they are good for two days."""
    ca, ca_key, server = (str(folder / name) for name in ("ca.pem", "ca.key", "server.pem"))
    _openssl("-keyout", ca_key, "-out", ca, "-subj", "/CN=Authority of a test", "-addext", "keyUsage=keyCertSign")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    leaf = ["-CA", ca, "-CAkey", ca_key, "-addext", "basicConstraints=critical,CA:FALSE", "-addext", names]
    key = str(folder / "server.key")
    _openssl("-keyout", key, "-out", server, "-subj", "/CN=localhost", *leaf)
    with (folder / "server.pem").open("ab") as file:
        file.write((folder / "server.key").read_bytes())
    return Certificates(ca, server)


def _openssl(*options: str) -> None:
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(["openssl", "req", "-x509", "-days", "2", *key, *options], check=True, capture_output=True)
