"""Data of running processes in `/proc`: variables, command lines and open files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Seen:
    """Observations of the processes of a server.

    Args:
        variables: Variables of all of them by name; of several values the last.
        commands: Their command lines.
        files: Regular files that they have open or mapped.
    """

    variables: dict[str, str]
    commands: frozenset[str]
    files: frozenset[str]

    def beyond(self, other: Seen, said: Callable[[str], str]) -> tuple[list[str], list[str], list[str]]:
        """Observations that another server lacks: names of variables, command lines and files.

        Args:
            other: The other server's observations.
            said: Normalises differing texts, such as paths and ports.
        """
        files = {said(name) for name in other.files}
        commands = {said(command) for command in other.commands}
        return (
            [name for name, value in self.variables.items() if said(value) != said(other.variables.get(name, ""))],
            [command for command in sorted(self.commands) if said(command) not in commands],
            [name for name in sorted(self.files) if said(name) not in files],
        )


def look_at(pids: Iterable[int]) -> Seen:
    """Read processes, as far as they run and may be read."""
    variables: dict[str, str] = {}
    commands: set[str] = set()
    files: set[str] = set()
    for pid in pids:
        try:
            process = psutil.Process(pid)
            variables |= process.environ()
            commands.add(" ".join(process.cmdline()))
            files.update(_files_of(process))
        except (psutil.Error, OSError):
            continue
    return Seen(variables, frozenset(commands), frozenset(files))


def _files_of(process: psutil.Process) -> Iterator[str]:
    for opened in process.open_files():
        yield opened.path
    for line in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        # `RANGE RIGHTS OFFSET DEVICE INODE PATH`; the path may contain spaces, or not be that of a file.
        *_, name = line.split(maxsplit=5)
        if name.startswith("/") and not name.startswith(("/dev/", "/memfd:", "/SYSV")):
            yield name
