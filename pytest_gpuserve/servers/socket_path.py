"""The length of a Unix socket's path: what is too long is told before a server fails over it."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from pytest_gpuserve.errors import ServerFailed

if TYPE_CHECKING:
    from pathlib import Path


def check_length(path: Path, longest: int, summary: str) -> None:
    """See that the path of a socket, or of the folder of some, has no more bytes than it may.

    Args:
        path: In this session's folder for temporary files.
        longest: So many it may have.
        summary: What is told if it has more.

    Raises:
        ServerFailed: It has more.
    """
    length = len(os.fsencode(path))
    if length > longest:
        raise ServerFailed(
            summary,
            found=f"{path} has {length}",
            looked=["TMPDIR", tempfile.gettempdir()],
            remedies=["run with a shorter folder for temporary files, such as TMPDIR=/tmp"],
        )
