"""The length of a Unix socket's path."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.servers.instance import check_length


def test_bytes_are_counted_and_too_many_are_told_with_what_helps() -> None:
    """A letter beyond ASCII takes more than one; the message says what has how many, and which variable is at fault."""
    check_length(Path("/tmp/abcd"), 9, "")
    check_length(Path("/tmp/abö"), 9, "")
    with pytest.raises(ServerFailed, match="the worker makes sockets in a folder of at most 9") as caught:
        check_length(Path("/tmp/abcö"), 9, "the worker makes sockets in a folder of at most 9")
    assert "/tmp/abcö has 10" in str(caught.value)
    assert "TMPDIR=/tmp" in str(caught.value)
