"""What `/proc` shows of running processes: variables, command lines and open files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of the processes of a server.

    Args:
        variables: By name, those of all of them; of several values the last.
        commands: Their command lines.
        files: What they have open or mapped, of regular files.
    """

    variables: dict[str, str]
    commands: frozenset[str]
    files: frozenset[str]

    def beyond(self, other: Seen, said: Callable[[str], str]) -> tuple[list[str], list[str], list[str]]:
        """What another server does not have: names of variables, command lines and files.

        Args:
            other: The other one.
            said: Makes what is the same in both alike, such as paths and ports.
        """
        files = {said(name) for name in other.files}
        commands = {said(command) for command in other.commands}
        return (
            [name for name, value in self.variables.items() if said(value) != said(other.variables.get(name, ""))],
            [command for command in sorted(self.commands) if said(command) not in commands],
            [name for name in sorted(self.files) if said(name) not in files],
        )


def look_at(pids: Iterable[int]) -> Seen:
    """Look at processes, as far as they still run and may be looked at."""
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
        # `RANGE RIGHTS OFFSET DEVICE INODE PATH`, the last of which may have spaces, or be none of a file.
        *_, name = line.split(maxsplit=5)
        if name.startswith("/") and not name.startswith(("/dev/", "/memfd:", "/SYSV")):
            yield name
