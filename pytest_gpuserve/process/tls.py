"""TLS to a server whose certificate is checked."""

from __future__ import annotations

import ssl
from functools import lru_cache

from pytest_gpuserve.errors import UsageProblem


@lru_cache
def verified_tls(ca_file: str) -> ssl.SSLContext:
    """Make what checks a server's certificate and name; once, for to read the system's takes as long as a request.

    Args:
        ca_file: Certificates to trust instead of the system's; empty for those.

    Raises:
        UsageProblem: They cannot be read.
    """
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as problem:
        raise UsageProblem(
            "the certificates to trust cannot be read",
            found=str(problem),
            looked=[ca_file],
            remedies=["ca_file= names a PEM file, by an absolute path or one relative to the test file"],
        ) from None
