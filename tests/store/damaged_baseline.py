"""Files whose content is not what was written, and in which words baselines are refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.errors import BaselineUnusable
from pytest_gpuserve.store.baseline import read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


NO_FILES_OF_OURS = [b"", b"\n", b"{", b"not json", b"[]", b"null", b"3", b'"text"', b"\xff\xfe", b"{}", b"[" * 500_000]
"""Contents that no file of ours has; the last one exhausts a reader that follows it."""


def put(path: Path, content: bytes | str) -> Path:
    """Write a file whatever its content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path: Path, content: bytes | str) -> str:
    """The words in which a content is refused; they always name the file and how to restore it."""
    with pytest.raises(BaselineUnusable) as caught:
        read(put(path, content))
    assert str(path) in caught.value.summary
    assert caught.value.remedies
    return str(caught.value)


def edited(text: str, change: Callable[[Any], object]) -> str:
    """A file with a change in its plain data."""
    plain = json.loads(text)
    change(plain)
    return json.dumps(plain)
