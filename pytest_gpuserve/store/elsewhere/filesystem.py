"""Folders in shared storage through fsspec: any scheme can be read, and S3 written too.

To write only over what was read takes a condition that the storage itself checks. S3 has had it for writes since 2024
(``If-None-Match: *`` and ``If-Match: ETag``, "Conditional requests" of its user guide). Other schemes have others or
none, and fsspec has no call for it, so they are for reading.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.store.elsewhere.address import OPTION, S3_SCHEMES
from pytest_gpuserve.store.elsewhere.causes import cause_of, error_code, is_absent, storage_problem
from pytest_gpuserve.store.elsewhere.names import version_of, versions_below
from pytest_gpuserve.store.elsewhere.remote import Changed, Held, StorageProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.store.elsewhere.address import Address
    from pytest_gpuserve.store.elsewhere.remote import Remote

CONNECT_SECONDS: Final = 5
READ_SECONDS: Final = 15
ATTEMPTS: Final = 2
LONGEST_SECONDS: Final = 60
"""Of one request, retries included, to an S3 that answers drop by drop; a large baseline file is a few megabytes."""

MOST_BYTES: Final = 2**26
"""A larger file is no baseline. Far larger ones s3fs writes in parts, to which a condition does not apply."""

MARKER: Final = ".pytest-gpuserve"
MARKER_TEXT: Final = (
    b"By this file pytest-gpuserve finds out whether this storage honours If-Match and If-None-Match.\n"
    b"Without them two runners could overwrite each other's baselines. It may be removed at any time.\n"
)

MOST_FOLDERS: Final = 10_000
"""A tree with more of them holds something else, or leads back into itself."""

_PAGES: Final = frozenset({"http", "https"})
"""Schemes that have no folders but pages with links: that of a login, or of an error, looks like an empty folder."""

_NO_VERSION: Final = f'"{"0" * 32}"'
"""An ETag that no content has."""

_CHANGED: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "409", "412"})


def open_remote(address: Address, *, called: str = OPTION) -> Remote:
    """Make ready to ask a storage; whoever does closes it.

    Args:
        address: Of a folder there.
        called: As for `parse_address`.

    Raises:
        UsageProblem: The scheme is unknown, or a library that it needs is not installed.
        StorageProblem: The backend does not even begin.
    """
    is_s3 = address.scheme in S3_SCHEMES
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 -- an extra, needed only for such an address
    except ImportError as problem:
        raise _not_installed(address, called, str(problem)) from None
    try:
        # Of our own, so that nobody else's settings are in it and it can be closed.
        filesystem, root = url_to_fs(address.url, skip_instance_cache=True, **(_s3_options() if is_s3 else {}))
    except ImportError as problem:
        raise _not_installed(address, called, str(problem)) from None
    except ValueError as problem:
        raise UsageProblem(f"{called}{address}: fsspec cannot use it", found=cause_of(problem)) from None
    except Exception as problem:  # noqa: BLE001 -- backends raise whatever they like
        raise storage_problem(address, "cannot be opened", problem) from None
    return S3Folder(address, filesystem, root) if is_s3 else ReadFolder(address, filesystem, root)


def _not_installed(address: Address, called: str, found: str) -> UsageProblem:
    extra = "s3" if address.scheme in S3_SCHEMES else "storage"
    return UsageProblem(
        f"{called}{address}: a library that {address.scheme}:// needs is not installed",
        found=found,
        remedies=[f"pip install 'pytest-gpuserve[{extra}]'"],
    )


def _s3_options() -> dict[str, Any]:
    """What an S3 file system is made with; of what fsspec's own configuration says of times, that counts."""
    from fsspec.config import conf  # noqa: PLC0415 -- as above

    ours = {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "retries": {"mode": "standard", "total_max_attempts": ATTEMPTS},
    }
    asked = conf.get("s3", {}).get("config_kwargs", {})
    return {"config_kwargs": {**ours, **(asked if isinstance(asked, dict) else {})}, "use_listings_cache": False}


class ReadFolder:
    """A folder behind any file system that fsspec knows, to be read alone.

    Args:
        address: Of the folder.
        filesystem: fsspec's.
        root: Path of the folder there.
    """

    def __init__(self, address: Address, filesystem: Any, root: str) -> None:  # noqa: ANN401 -- fsspec has no types
        self.address = address
        self.filesystem = filesystem
        self.root = root.rstrip("/")

    def listing(self) -> dict[str, str]:
        """See `Remote`."""
        with self._told("cannot be listed"):
            self.filesystem.invalidate_cache()
            versions = versions_below(self._files(), self.root, self.address.url)
            if not versions and self.address.scheme in _PAGES:
                raise StorageProblem(
                    f"{self.address} cannot be listed",
                    found="no page there has a link to a baseline file",
                    remedies=["is the name right? the server has to list folders"],
                )
        return versions

    def fetch(self, name: str) -> Held | None:
        """See `Remote`."""
        path = self._path(name)
        with self._told(f"cannot be read: {name}"):
            try:
                # The version first: a file that is replaced in between is then fetched once more the next time.
                info = self.filesystem.info(path, **self._bound())
                self._check_size(name, info.get("size"))
                data = self.filesystem.cat_file(path, **self._bound())
            except FileNotFoundError as problem:
                if not is_absent(problem):
                    raise
                return None
            self._check_size(name, len(data))
            return Held(data, version_of(info))

    def check_writable(self) -> None:
        """See `Remote`."""
        raise UsageProblem(
            f"nothing is written to {self.address}: two runners could overwrite each other's baselines",
            found=f"{self.address.scheme}:// has no write that replaces only what was read, as far as is known here",
            remedies=[
                "record into s3://",
                "record into a folder, --baseline-dir=DIR, and copy it there by other means",
            ],
        )

    def put(self, name: str, data: bytes, *, over: str | None) -> str:  # noqa: ARG002 -- see `Remote`
        """See `Remote`; it refuses."""
        self.check_writable()
        return ""

    def close(self) -> None:
        """See `Remote`; what other backends hold ends with the process."""

    def _files(self) -> dict[str, Any]:
        """What the file system says of each file, by its path.

        fsspec's ``find`` leaves out each folder that it cannot list; without them baselines would be MISSING.
        """
        found: dict[str, Any] = {}
        folders, known = [self.root], {self.root}
        while folders:
            folder = folders.pop()
            try:
                infos = self.filesystem.ls(folder, detail=True, **self._bound())
            except FileNotFoundError as problem:
                # The folder itself may not have been made yet.
                if folder != self.root or not is_absent(problem):
                    raise
                return {}
            for info in infos:
                path = str(info["name"]).rstrip("/")
                if info["type"] != "directory":
                    found[path] = info
                elif path not in known and not {".", ".."} & set(path.split("/")):
                    known.add(path)
                    folders.append(path)
            if len(known) > MOST_FOLDERS:
                raise StorageProblem(
                    f"{self.address} is no folder of baselines alone", found=f"more than {MOST_FOLDERS} folders"
                )
        return found

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _bound(self) -> dict[str, float]:
        """Bound a call in time, where it can be: of those that fsspec makes from coroutines."""
        return {"timeout": LONGEST_SECONDS} if getattr(self.filesystem, "async_impl", False) else {}

    def _check_size(self, name: str, size: int | None) -> None:
        """Refuse a file by its size, if that is known."""
        if size is not None and size > MOST_BYTES:
            raise StorageProblem(f"{self.address.of(name)} is no baseline file", found=f"it is too large: {size} bytes")

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except (GpuserveError, Changed):
            raise
        except Exception as problem:  # noqa: BLE001 -- backends raise whatever they like
            raise storage_problem(self.address, what, problem) from None


class S3Folder(ReadFolder):
    """A folder in a bucket, to be read and written; see `ReadFolder`."""

    def __init__(self, address: Address, filesystem: Any, root: str) -> None:  # noqa: ANN401 -- fsspec has no types
        super().__init__(address, filesystem, root)
        # botocore tries again by itself, and knows better when.
        filesystem.retries = 1

    def _files(self) -> dict[str, Any]:
        """One listing has them all; s3fs leaves out no error of it."""
        found: dict[str, Any] = self.filesystem.find(self.root, detail=True, **self._bound())
        return found

    def fetch(self, name: str) -> Held | None:
        """See `Remote`; content and version are of one answer."""
        from fsspec.asyn import sync  # noqa: PLC0415 -- an extra

        bucket, key, _ = self.filesystem.split_path(self._path(name))

        async def get(attempt: int = 1) -> Held:
            answer = await self.filesystem._call_s3("get_object", Bucket=bucket, Key=key)  # noqa: SLF001 -- fsspec's name of what runs in its loop
            try:
                async with answer["Body"] as body:
                    self._check_size(name, answer.get("ContentLength"))
                    return Held(await body.read(), answer["ETag"])
            except StorageProblem:
                raise
            except Exception:
                # Of an answer that is cut off botocore does not try to get the rest.
                if attempt == ATTEMPTS:
                    raise
            return await get(attempt + 1)

        with self._told(f"cannot be read: {name}"):
            try:
                held: Held = sync(self.filesystem.loop, get, timeout=LONGEST_SECONDS)
            except FileNotFoundError as problem:
                if error_code(problem) == "NoSuchBucket":
                    raise
                return None
            self._check_size(name, len(held.data))
            return held

    def check_writable(self) -> None:
        """See `Remote`. Where all is well, and was before, nothing is written."""
        # The first may make the marker; the second has to find it there.
        honoured = (self._refuses(None) or self._refuses(None)) and self._refuses(_NO_VERSION)
        if not honoured:
            raise UsageProblem(
                f"nothing is written to {self.address}: two runners could overwrite each other's baselines",
                found="the storage, or a proxy before it, or an old botocore, does not honour If-Match or"
                " If-None-Match on writes",
                remedies=["use a storage that does, as Amazon's S3", "pip install --upgrade 'pytest-gpuserve[s3]'"],
            )

    def _refuses(self, over: str | None) -> bool:
        """Whether the marker is not written over a version that it has not."""
        try:
            self.put(MARKER, MARKER_TEXT, over=over)
        except Changed:
            return True
        return False

    def put(self, name: str, data: bytes, *, over: str | None) -> str:
        """See `Remote`."""
        if len(data) > MOST_BYTES:
            raise StorageProblem(f"{self.address.of(name)} is not written", found=f"{len(data)} bytes are too many")
        condition = {"IfNoneMatch": "*"} if over is None else {"IfMatch": over}
        with self._told(f"cannot be written: {name}"):
            try:
                answer = self.filesystem.pipe_file(self._path(name), data, timeout=LONGEST_SECONDS, **condition)
            except OSError as problem:
                code = error_code(problem)
                if code in _CHANGED or (over is not None and code == "NoSuchKey"):
                    raise Changed from None
                raise
        return str((answer or {}).get("ETag", ""))

    def close(self) -> None:
        """See `Remote`."""
        from fsspec.asyn import sync  # noqa: PLC0415 -- an extra

        made_by = getattr(self.filesystem, "_s3creator", None)
        if made_by is not None:
            # s3fs does it when an instance is collected, which may be long after, and in a tenth of a second or not.
            # All that was asked for is done: whatever goes wrong now is no reason to fail.
            with suppress(Exception):
                sync(self.filesystem.loop, made_by.__aexit__, None, None, None, timeout=CONNECT_SECONDS)
