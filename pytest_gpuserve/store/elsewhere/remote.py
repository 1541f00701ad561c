"""What is asked of a storage: list a folder, fetch a file of it, and write one over nothing but what was read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from pytest_gpuserve.errors import GpuserveError


class StorageProblem(GpuserveError):
    """A storage did not do what it was asked for; says why in ``found``, without secrets."""


class Changed(Exception):
    """A file is no longer what it was when it was read, so nothing was written."""


@dataclass(frozen=True, slots=True)
class Held:
    """A file as it was at one moment.

    Args:
        data: All of it.
        version: Tells it from every other state of the file; empty where the storage has nothing that does.
    """

    data: bytes = field(repr=False)
    version: str


class Remote(Protocol):
    """A folder in shared storage. Names are relative to it, with ``/`` between their parts.

    Every method raises `StorageProblem` where the storage cannot be reached, refuses, or does not answer in time.
    """

    def listing(self) -> dict[str, str]:
        """Names of all baseline files with their versions, as `Held.version`."""

    def fetch(self, name: str) -> Held | None:
        """A file; None if there is none."""

    def check_writable(self) -> None:
        """Find out, before hours are measured, whether files may be written, and only over what was read.

        Raises:
            UsageProblem: The storage has no such writes.
        """

    def put(self, name: str, data: bytes, *, over: str | None) -> str:
        """Write a file, and return its version.

        Args:
            name: Of the file.
            data: All of it.
            over: The version that it replaces; None for a file that must not be there yet.

        Raises:
            Changed: It is another by now.
        """

    def close(self) -> None:
        """Close connections; may be called again."""
