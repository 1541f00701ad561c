"""Baselines in shared storage: a copy on this machine to read, and writes that replace only what was read."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Mapping


S3_SCHEMES: Final = frozenset({"s3", "s3a"})

OPTION: Final = "--baseline-dir="
"""What stands before an address on the command line of pytest."""

FILES: Final = "files"
"""Below the folder of a copy: the baselines, as they would lie in a checkout."""

_WHICH_STORE: Final = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "FSSPEC_S3", "FSSPEC_S3_ENDPOINT_URL")
"""Variables with which the same address may lead to another store."""

_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.+)")
_WITH_PASSWORD: Final = re.compile(r"(?!/).*:.*@")
_EXAMPLE: Final = "an address is s3://BUCKET/FOLDER without ?, #, \\, . and .., such as s3://bucket/baselines"


@dataclass(frozen=True, slots=True)
class StorageAddress:
    """The address of a folder of baselines: scheme in lower case, URL without a slash at its end or a secret."""

    scheme: str
    url: str

    def __str__(self) -> str:
        return self.url

    def of(self, name: str) -> str:
        """The address of a file in it, or of a folder."""
        return f"{self.url}/{name}"


def is_address(text: str) -> bool:
    """Whether a text is, or is meant to be, an address and not a folder."""
    return "://" in text


def parse_address(text: str, *, called: str = OPTION) -> StorageAddress | Path:
    """Read an address; one with ``file://`` is a folder of this machine.

    Args:
        called: What stands before it where it was typed, for errors.

    Raises:
        UsageProblem: It cannot be used. The error does not show what may be a secret in it.
    """
    found = _ADDRESS.fullmatch(text)
    scheme, place = (found[1].lower(), found[2].rstrip("/")) if found else ("", "")
    is_folder = scheme == "file"
    # A bucket's keys and a folder may have an @ in them, but not a bucket's name; a password may have slashes in it.
    host = place.partition("/")[0] if is_folder or scheme in S3_SCHEMES else place
    if "@" in host or _WITH_PASSWORD.match(place):
        raise UsageProblem(
            f"{called}{scheme}://...: there is a password in the address, or what may be one before the @, which would"
            " be seen in logs",
            remedies=["leave it out: credentials come from where the storage's own tools take them"],
        )
    if scheme and not is_folder and scheme not in S3_SCHEMES:
        raise UsageProblem(
            f"{called}{scheme}://...: baselines are kept in folders and in S3",
            remedies=[_EXAMPLE, "copy those of another storage into a folder, by its own tools"],
        )
    odd = not text.isprintable() or "::" in place or {*"?#\\"} & {*place} or {".", ".."} & {*place.split("/")}
    if not place or odd or (is_folder and not place.startswith("/")):
        raise UsageProblem(
            f"{called}...: this is no address of a folder",
            remedies=[_EXAMPLE],
        )
    return Path(place) if is_folder else StorageAddress(scheme, f"{scheme}://{place}")


def copy_folder(address: StorageAddress, environment: Mapping[str, str]) -> Path:
    """Where the copy of a folder is kept on this machine; there need be none yet.

    Args:
        environment: That of this process: it says where caches are, and which store is meant.

    Raises:
        UsageProblem: The user has no home, and nothing else says where caches are.
    """
    try:
        caches = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise UsageProblem(
            "--baseline-dir: there is no folder for a copy of the baselines",
            found="this user has no home",
            remedies=["name a folder for caches with the variable XDG_CACHE_HOME"],
        ) from None
    store = "\0".join([address.url, *(environment.get(name, "") for name in _WHICH_STORE)])
    digest = hashlib.sha256(store.encode("utf-8", "backslashreplace")).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9]+", "-", address.url)[:40].strip("-")
    return caches.absolute() / "pytest-gpuserve" / "baselines" / f"{readable}-{digest}"
