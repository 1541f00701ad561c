"""``python -m pytest_gpuserve.store.elsewhere FOLDER``: sends what a run measured and could not write."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuserve.errors import BaselineUnusable, GpuserveError, UsageProblem
from pytest_gpuserve.process.command_line import masked, refused, run_command
from pytest_gpuserve.store.elsewhere.address import Address, copy_folder, parse_address
from pytest_gpuserve.store.elsewhere.filesystem import open_remote
from pytest_gpuserve.store.elsewhere.mirror import BaselineCache
from pytest_gpuserve.store.elsewhere.remote import StorageProblem
from pytest_gpuserve.store.elsewhere.shared import SharedFiles
from pytest_gpuserve.store.elsewhere.unsent import Unsent, forget, forget_entry, read_notes, read_unsent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.store.files import Decide
    from pytest_gpuserve.store.schema import Entry


def main(arguments: Sequence[str]) -> int:
    """Send, print what was sent, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_gpuserve.store.elsewhere",
        description="Sends baselines that a run has measured, but could not write where they belong.",
        epilog="What was sent is removed from the folder. Exit status: 0 where all was sent, and the folder is removed;"
        " 1 where an entry was not, or the folder cannot be removed; 2 for a wrong argument.",
    )
    parser.add_argument("folder", type=Path, help="what the run has kept, as its error names it")
    parser.add_argument(
        "--replace", action="store_true", help="replace entries that other runners have recorded meanwhile, too"
    )
    given = parser.parse_args(arguments)
    try:
        return _send(given.folder, replace=given.replace)
    except StorageProblem as problem:
        return _failed(str(problem))
    except GpuserveError as problem:
        return refused(problem)


def _send(folder: Path, *, replace: bool) -> int:
    notes = read_notes(folder)
    address = parse_address(notes.url)
    if not isinstance(address, Address):
        raise UsageProblem(f"{folder} belongs into the folder {address}, and no storage")
    mirror, unsent = BaselineCache(copy_folder(address, os.environ)), Unsent(folder.parent, address.url)
    failed = False
    with closing(open_remote(address)) as remote:
        remote.check_writable()
        files = SharedFiles(address, mirror, lambda: remote, unsent)
        for name, based_on in notes.based_on.items():
            for key, stored in read_unsent(folder, name).items():
                try:
                    files.change_over(name, None if replace else based_on, _replacing(key, stored.entry))
                    print(f"{key}: sent to {address.of(name)}")  # noqa: T201 -- a command
                    forget_entry(folder, name, key)
                except (BaselineUnusable, StorageProblem) as problem:
                    failed = True
                    _failed(str(problem))
    if failed:
        return 1
    try:
        forget(folder)
    except OSError as problem:
        return _failed(f"all was sent, but {folder} cannot be removed: {problem}")
    return 0


def _failed(text: str) -> int:
    """Tell on standard error what was not done, without secrets, and return the exit status that says so."""
    print(masked(text), file=sys.stderr)  # noqa: T201 -- a command
    return 1


def _replacing(key: str, entry: Entry) -> Decide:
    return lambda _: {key: entry}


if __name__ == "__main__":
    sys.exit(run_command(main))
