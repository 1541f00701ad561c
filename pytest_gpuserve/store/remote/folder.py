"""A folder in a bucket of S3, through s3fs.

To write only over what was read takes a condition that the storage itself checks. S3 has had it for writes since 2024
(``If-None-Match: *`` and ``If-Match: ETag``, "Conditional requests" of its user guide).
"""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.process.secrets import masked
from pytest_gpuserve.store.published import FOLDER as PUBLISHED
from pytest_gpuserve.store.remote import OPTION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpuserve.store.remote import StorageAddress

CONNECT_SECONDS: Final = 5
READ_SECONDS: Final = 15
ATTEMPTS: Final = 2
LONGEST_SECONDS: Final = 60
"""Of one request, retries included, to an S3 that answers drop by drop; a large baseline file is a few megabytes."""

MOST_BYTES: Final = 2**26
"""A larger file is no baseline. Far larger ones s3fs writes in parts, to which a condition does not apply."""

MOST_ITEMS: Final = 10_000
"""A folder with more files that could be baselines holds something else."""

SUFFIX: Final = ".json"

MARKER: Final = ".pytest-gpuserve"
MARKER_TEXT: Final = (
    b"By this file pytest-gpuserve finds out whether this storage honours If-Match and If-None-Match.\n"
    b"Without them two runners could overwrite each other's baselines. It may be removed at any time.\n"
)

_NO_VERSION: Final = f'"{"0" * 32}"'
"""An ETag that no content has."""

_CHANGED: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "409", "412"})
_NO_CREDENTIALS: Final = frozenset({"NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"})
_LONGEST_CAUSE: Final = 500
_USER: Final = re.compile(r"://\S+@")
"""As far as the last ``@`` of the word: a token may have slashes and a password anything in it."""


class StorageProblem(GpuserveError):
    """A storage did not do what it was asked for; says why in ``found``, without secrets."""


class VersionConflict(Exception):
    """A file is no longer what it was when it was read, so nothing was written."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at one moment; the version is empty where the storage has nothing that tells states apart."""

    data: bytes = field(repr=False)
    version: str


def is_baseline_name(name: str) -> bool:
    """Whether a name below the folder is ``<device>/.../<file>.json``, and leads nowhere else."""
    parts = name.split("/")
    return len(parts) > 1 and name.endswith(SUFFIX) and "\0" not in name and not {"", ".", ".."} & {*parts}


def is_for(name: str, device: str) -> bool:
    """Whether a session on a device may need a file: its own baselines, and what was published of any device."""
    first, second, *_ = name.split("/")
    return first == device or second == PUBLISHED


def open_remote(address: StorageAddress, *, called: str = OPTION) -> RemoteFolder:
    """Prepare requests to a storage; the caller closes it.

    Raises:
        UsageProblem: The library that it needs is not installed.
        StorageProblem: The backend does not even begin.
    """
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 -- an extra, needed only for such an address

        # Of our own, so that nobody else's settings are in it and it can be closed.
        filesystem, root = url_to_fs(address.url, skip_instance_cache=True, **_options())
    except ImportError as problem:
        raise UsageProblem(
            f"{called}{address}: the library that it needs is not installed",
            found=str(problem),
            remedies=["pip install 'pytest-gpuserve[s3]'"],
        ) from None
    except Exception as problem:  # noqa: BLE001 -- backends raise whatever they like
        raise storage_problem(f"{address} cannot be opened", problem) from None
    return RemoteFolder(address, filesystem, root)


def _options() -> dict[str, Any]:
    """What the file system is made with; what fsspec's own configuration says of times counts."""
    from fsspec.config import conf  # noqa: PLC0415 -- an extra

    times = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}
    ours = {**times, "retries": {"mode": "standard", "total_max_attempts": ATTEMPTS}}
    asked = conf.get("s3", {}).get("config_kwargs", {})
    config = {**ours, **(asked if isinstance(asked, dict) else {})}
    # With more at once each file is asked for its size first.
    return {"config_kwargs": config, "use_listings_cache": False, "max_concurrency": 1}


class RemoteFolder:
    """A folder in a bucket; names in it are relative, with ``/``.

    Every method raises `StorageProblem` where the storage cannot be reached, refuses, or does not answer in time.
    """

    def __init__(self, address: StorageAddress, filesystem: Any, root: str) -> None:  # noqa: ANN401 -- fsspec has no types
        self.address = address
        self.filesystem = filesystem
        self.root = root.rstrip("/")
        # botocore tries again by itself, and knows better when.
        filesystem.retries = 1

    def listing(self) -> dict[str, str]:
        """Names of all baseline files with their versions, as `RemoteFile.version`."""
        with self._told(f"{self.address} cannot be listed"):
            self.filesystem.invalidate_cache()
            # One listing has them all; s3fs leaves out no error of it.
            files = self.filesystem.find(self.root, detail=True, timeout=LONGEST_SECONDS)
            below = {path.removeprefix(f"{self.root}/"): info for path, info in files.items()}
            found = {name: info for name, info in below.items() if is_baseline_name(name)}
            if len(found) > MOST_ITEMS:
                raise StorageProblem(
                    f"{self.address} is no folder of baselines alone",
                    found=f"{len(found)} files that could be some",
                    remedies=["name the folder that has those of the devices in it"],
                )
        return {name: _version_of(info) for name, info in found.items()}

    def fetch(self, name: str, version: str | None = None) -> RemoteFile | None:
        """A file, of a version that a listing has just named if given; None if there is none."""
        path = f"{self.root}/{name}"
        with self._told(f"{self.address.of(name)} cannot be read"):
            try:
                # The version first: a file that is replaced in between is not written over, and fetched again.
                if version is None:
                    info = self.filesystem.info(path, timeout=LONGEST_SECONDS)
                    self._check_size(name, info.get("size"))
                    version = _version_of(info)
                data = self._content(path)
            except FileNotFoundError as problem:
                if not _is_absent(problem):
                    raise
                return None
            self._check_size(name, len(data))
            return RemoteFile(data, version)

    def check_writable(self) -> None:
        """Raise `UsageProblem`, before hours are measured, where the storage does not honour conditions on writes.

        Where all is well, and was before, nothing is written.
        """
        # The first may make the marker; the second has to find it there.
        if not ((self._refuses(None) or self._refuses(None)) and self._refuses(_NO_VERSION)):
            raise UsageProblem(
                f"nothing is written to {self.address}: two runners could overwrite each other's baselines",
                found="the storage, or a proxy before it, or an old botocore, does not honour If-Match or If-None-Match"
                " on writes",
                remedies=["use a storage that does, as Amazon's S3", "pip install --upgrade 'pytest-gpuserve[s3]'"],
            )

    def put(self, name: str, data: bytes, *, over: str | None) -> str:
        """Write a file, and return its version.

        Args:
            over: The version that it replaces; None for a file that must not exist yet.

        Raises:
            VersionConflict: Another version is stored by now.
        """
        self._check_size(name, len(data))
        if over == "":
            # An empty condition may be taken for none.
            raise StorageProblem(f"{self.address.of(name)} cannot be written", found="the storage tells no ETag of it")
        condition = {"IfNoneMatch": "*"} if over is None else {"IfMatch": over}
        with self._told(f"{self.address.of(name)} cannot be written"):
            try:
                answer = self.filesystem.pipe_file(f"{self.root}/{name}", data, timeout=LONGEST_SECONDS, **condition)
            except OSError as problem:
                code = _error_code(problem)
                if code in _CHANGED or (over is not None and code == "NoSuchKey"):
                    raise VersionConflict from None
                raise
        return str((answer or {}).get("ETag", ""))

    def close(self) -> None:
        """Close connections: s3fs does it when an instance is collected, which may be long after, or not at all."""
        from fsspec.asyn import sync  # noqa: PLC0415 -- an extra

        made_by = getattr(self.filesystem, "_s3creator", None)
        if made_by is not None:
            # All that was asked for is done: whatever goes wrong now is no reason to fail.
            with suppress(Exception):
                sync(self.filesystem.loop, made_by.__aexit__, None, None, None, timeout=CONNECT_SECONDS)

    def _content(self, path: str) -> bytes:
        """All of a file; asked for again, once, where the answer is cut off."""
        try:
            data: bytes = self.filesystem.cat_file(path, timeout=LONGEST_SECONDS)
        except (OSError, asyncio.TimeoutError):  # which are one from Python 3.11 on
            raise
        except Exception:  # noqa: BLE001 -- backends raise whatever they like
            data = self.filesystem.cat_file(path, timeout=LONGEST_SECONDS)
        return data

    def _refuses(self, over: str | None) -> bool:
        """Whether the marker is not written over a version that it has not."""
        try:
            self.put(MARKER, MARKER_TEXT, over=over)
        except VersionConflict:
            return True
        return False

    def _check_size(self, name: str, size: int | None) -> None:
        """Refuse a file by its size, if that is known."""
        if size is not None and size > MOST_BYTES:
            raise StorageProblem(f"{self.address.of(name)} is no baseline file", found=f"it is too large: {size} bytes")

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except (GpuserveError, VersionConflict):
            raise
        except Exception as problem:  # noqa: BLE001 -- backends raise whatever they like
            raise storage_problem(what, problem) from None


def storage_problem(summary: str, problem: BaseException) -> StorageProblem:
    """The error of a storage, from what its backend raised."""
    remedies = []
    if isinstance(problem, PermissionError) or type(problem).__name__ in _NO_CREDENTIALS:
        remedies = [
            "credentials come from where the storage's own tools take them: the environment, AWS_PROFILE, ~/.aws",
            "to read takes s3:ListBucket and s3:GetObject, to record s3:PutObject too",
        ]
    elif isinstance(problem, FileNotFoundError):
        remedies = ["is the name right? a bucket is never made here"]
    else:
        remedies = ["is it reachable from this machine? AWS_ENDPOINT_URL names an S3 that is not Amazon's"]
    return StorageProblem(summary, found=cause_of(problem), remedies=remedies)


def cause_of(problem: BaseException) -> str:
    """The kind and the text of an error in one line, without secrets."""
    text = " ".join(str(problem).split())
    line = f"{type(problem).__name__}: {text}" if text else type(problem).__name__
    return masked(_USER.sub("://...@", line))[:_LONGEST_CAUSE]


def _is_absent(problem: FileNotFoundError) -> bool:
    """Whether there is no such file; s3fs says so of other errors too, such as no such bucket, which are the cause."""
    return problem.__cause__ is None or _error_code(problem) in {"404", "NoSuchKey"}


def _error_code(problem: BaseException) -> str:
    """What an S3 calls an error, such as ``PreconditionFailed``; empty where it said nothing.

    s3fs raises an error of Python's own, with botocore's as its cause.
    """
    for each in (problem, problem.__cause__):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
    return ""


def _version_of(info: Mapping[str, Any]) -> str:
    """What tells states of a file apart, by what fsspec says of it; empty where nothing does."""
    return str(info.get("ETag") or info.get("etag") or "")
