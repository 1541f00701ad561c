"""Files of our own in which every change is noticed: a checksum over the content, and one way only to write it.

The checksum is no secret: it tells damage and the removal of an unlucky round, not somebody who forges a file.
"""

from __future__ import annotations

import hashlib
import stat
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.store.schema import FileHead

if TYPE_CHECKING:
    from pathlib import Path

Content = TypeVar("Content")

MAX_BYTES: Final = 2**28
"""A larger file is none of ours (the eight rounds of a long comparison take a megabyte or so), and is not read."""


class HistoryUnusable(GpuserveError):
    """What was kept between runs cannot be read, trusted or written; a run goes on without it, and says so."""

    @property
    def line(self) -> str:
        """All of it in one line, for a note beside a verdict."""
        found = f" ({self.found})" if self.found else ""
        return " ".join("; ".join((f"{self.summary}{found}", *self.remedies)).split())


def unusable(path: Path, found: str, remedy: str = "") -> HistoryUnusable:
    """Say that a file is not used, why, and what helps; without a remedy of its own, to remove it."""
    return HistoryUnusable(
        f"what {path} remembers of earlier runs is not used", found=found, remedies=[remedy or f"remove {path}"]
    )


class _Checksummed(msgspec.Struct, forbid_unknown_fields=True):
    schema: int
    sha256: str
    content: msgspec.Raw


def with_checksum(content: bytes, *, schema: int) -> bytes:
    """Put a checksum and the number of the schema around a content, which is JSON."""
    return b'{"schema":%d,"sha256":"%s","content":%s}\n' % (
        schema,
        hashlib.sha256(content).hexdigest().encode(),
        content,
    )


def read_checksummed(path: Path, kind: type[Content], *, schema: int) -> Content | None:
    """Read a file that `with_checksum` wrote; None if there is none.

    Raises:
        HistoryUnusable: It is not, byte for byte, what this version wrote; names the file.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise unusable(path, "it is no regular file")
        if status.st_size > MAX_BYTES:
            raise unusable(path, f"it is too large: {status.st_size} bytes")
        return parse_checksummed(path, path.read_bytes(), kind, schema=schema)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise unusable(path, str(problem)) from None


def parse_checksummed(path: Path, data: bytes, kind: type[Content], *, schema: int) -> Content:
    """Read the bytes of a file; see `read_checksummed`."""
    try:
        written_as = msgspec.json.decode(data, type=FileHead).schema
        if written_as > schema:
            raise unusable(
                path,
                f"a newer pytest-gpuserve wrote it: schema {written_as}; this version reads schema {schema}",
                "upgrade with `pip install --upgrade pytest-gpuserve`",
            )
        if written_as < schema:
            raise unusable(path, f"an older pytest-gpuserve wrote it: schema {written_as}; this one reads {schema}")
        content = bytes(msgspec.json.decode(data, type=_Checksummed).content)
        if with_checksum(content, schema=schema) != data:
            raise unusable(path, "it was changed since it was written")
        value = msgspec.json.decode(content, type=kind)
        if encode(value) != content:
            raise unusable(path, "it says more, or other, than this version writes")
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        raise unusable(path, str(problem)) from None
    return value


def encode(value: object) -> bytes:
    """Write a content in the one way in which it is written."""
    return msgspec.json.encode(value, order="deterministic")
