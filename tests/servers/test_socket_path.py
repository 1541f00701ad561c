"""The length of a Unix socket's path."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.servers.socket_path import check_length


def test_bytes_are_counted() -> None:
    """A path may have as many bytes as are allowed; a letter beyond ASCII takes more than one of them."""
    check_length(Path("/tmp/abcd"), 9, "")
    check_length(Path("/tmp/abö"), 9, "")
    with pytest.raises(ServerFailed):
        check_length(Path("/tmp/abcö"), 9, "")


def test_a_longer_one_is_told_with_what_helps() -> None:
    """The message says what has how many, and which variable makes it shorter."""
    with pytest.raises(ServerFailed) as caught:
        check_length(Path("/tmp/abcde"), 9, "the worker makes sockets in a folder of at most 9")
    told = str(caught.value)
    assert "the worker makes sockets in a folder of at most 9" in told
    assert "/tmp/abcde has 10" in told
    assert "TMPDIR=/tmp" in told
