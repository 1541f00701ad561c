"""Folders with an owner that outlives us: a keeper process, which removes them however this process ends."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuserve.errors import ServerFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RELEASE_SECONDS = 30.0
"""Longest wait for a keeper that has nothing left to do but to remove folders, on a machine in trouble."""

KEEPER = Path(__file__).with_name("keeper.py")


@dataclass(frozen=True)
class Kept:
    """A keeper that has been told its folders, and waits for what to start, if anything.

    Attributes:
        folders: Absolute folders, which may be made only now: they are removed with all that is in them when the
            tree that is then started has ended, or else with ``release()`` or this process.
        keeper: The keeper.
        link: To the keeper.
        log: Where it and what it starts write.
        log_start: Offset in bytes at which they begin to.
    """

    folders: tuple[Path, ...]
    keeper: subprocess.Popen[bytes]
    link: socket.socket
    log: Path
    log_start: int

    @classmethod
    def reserve(cls, folders: Sequence[Path], *, log: Path) -> Kept:
        """Start a keeper of these folders.

        Args:
            folders: They need not exist yet: what is made after this is removed for sure.
            log: File to which it writes, outside of the folders if it is to be read after their end.

        Raises:
            ServerFailed: The log cannot be written, or there can be no more processes.
            ValueError: A folder is relative, or is or holds the home folder or the working folder.
        """
        for folder in folders:
            if not folder.is_absolute() or any(place.is_relative_to(folder) for place in (Path.home(), Path.cwd())):
                raise ValueError(f"{folder} cannot be owned by a server: it would be removed with all that is in it")
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                with log.open("ab") as opened:
                    log_start = opened.tell()
                    keeper = subprocess.Popen(
                        [sys.executable, "-I", "-S", str(KEEPER), str(theirs.fileno()), *map(str, folders)],
                        stdin=subprocess.DEVNULL,
                        stdout=opened,
                        stderr=opened,
                        cwd="/",
                        pass_fds=[theirs.fileno()],
                        start_new_session=True,
                    )
            except OSError as error:
                ours.close()
                raise ServerFailed("no keeper process could be started", found=str(error), looked=[str(log)]) from error
        return cls(tuple(folders), keeper, ours, log, log_start)

    def release(self) -> None:
        """Have the keeper remove its folders and end; what it was told to start has been ended before."""
        self.link.close()
        with suppress(subprocess.TimeoutExpired):
            self.keeper.wait(RELEASE_SECONDS)


@contextmanager
def kept_folder(prefix: str, *, log: Path = Path("/dev/null")) -> Iterator[tuple[Path, Kept]]:
    """Make a private temporary folder that ends with the block, or with this process, SIGKILL included.

    Args:
        prefix: How its name begins.
        log: As for `Kept.reserve`.

    Yields:
        The folder, and its keeper, which may be told to start something that then owns the folder.

    Raises:
        ServerFailed: It cannot be made.
    """
    folder = Path(tempfile.gettempdir()) / f"{prefix}{uuid.uuid4().hex[:12]}"
    kept = Kept.reserve([folder], log=log)
    try:
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise ServerFailed(
                "there is no place for temporary files", found=str(error), remedies=["name another: TMPDIR=DIR"]
            ) from error
        yield folder, kept
    finally:
        kept.release()
