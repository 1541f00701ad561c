"""Baselines that several runners have recorded, put into one folder, entry by entry.

Each runner begins with the same baselines and records some of them anew, so that its folder has its own new entries
and the old ones of all others. What a runner has recorded is what is newer than in the folder that all began with; it
is taken whole, with its anchors, which its recording has set or moved. Nothing is removed: a runner that does not have
a test has no opinion on its entry.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import BaselineUnusable, UsageProblem
from pytest_gpuserve.report.names import printable
from pytest_gpuserve.store import write_whole
from pytest_gpuserve.store.baseline import read, write
from pytest_gpuserve.store.files import alone
from pytest_gpuserve.store.published import FOLDER as PUBLISHED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.store.schema import Entry

_WHOSE: Final = "--into"


@dataclass(frozen=True)
class _Recorded:
    """An entry as a runner has recorded it."""

    folder: str
    entry: Entry


def merge_baselines(folders: Sequence[str], into: str) -> list[str]:
    """Put what was recorded into a folder of baselines; either all of it, or nothing.

    Args:
        folders: Where runners have recorded.
        into: The folder that all of them began with; it may be empty, or not be there.

    Returns:
        What was taken from where, and what was not though it differs, a line each.

    Raises:
        UsageProblem: One is no folder, or has no baselines, or an entry was recorded by two runners; nothing was
            written.
        BaselineUnusable: A file cannot be read, trusted or written; the folder is as it was.
    """
    _check_folder(into)
    named = {name: _files(name) for name in dict.fromkeys(folders)}
    with alone(f"nothing is written into {into}", "merges baselines"):
        places = sorted({place for files in named.values() for place in files})
        changes, lines, conflicts, passed_over = {}, [], [], []
        for place in places:
            path = Path(into) / place
            before = {key: stored.entry for key, stored in read(path).items()}
            taken: dict[str, _Recorded] = {}
            for name, files in named.items():
                found = read(files[place]) if place in files else {}
                _check_place(name, place, found)
                for key, stored in found.items():
                    if _is_older(stored.entry, before.get(key)):
                        # As it was before another runner's recording came in, or by a clock that is slow.
                        passed_over.append(printable(f"{place}: {key} of {name} is not taken: --into has a newer one"))
                        continue
                    conflicts += _take(taken, key, _Recorded(name, stored.entry), before.get(key), place)
            if taken:
                changes[path] = {**before, **{key: each.entry for key, each in taken.items()}}
                lines += [printable(f"{place}: {key} of {each.folder}") for key, each in sorted(taken.items())]
        if conflicts:
            raise UsageProblem(
                f"{len(conflicts)} entr{'ies were' if len(conflicts) > 1 else 'y was'} recorded differently by two"
                " runners; nothing was written",
                found="\n".join(printable(each) for each in conflicts),
                remedies=[
                    "let --into be the baselines that all of them began with",
                    "leave out the folder whose recording is not meant",
                ],
            )
        _write_all(changes)
    count = len(lines)
    return [
        *lines,
        *passed_over,
        f"{count} entr{'y' if count == 1 else 'ies'} merged into {into}" if count else "nothing is new",
    ]


def _take(taken: dict[str, _Recorded], key: str, new: _Recorded, before: Entry | None, place: str) -> list[str]:
    """Take an entry if it was recorded since; what contradicts it."""
    if new.entry == before:
        return []
    other = taken.get(key)
    if before is not None and _newest(new.entry) == _newest(before):
        other = _Recorded(_WHOSE, before)
    if other is None:
        taken[key] = new
        return []
    return [] if other.entry == new.entry else [f"{place}: {key} of {other.folder} and of {new.folder}"]


def _is_older(entry: Entry, before: Entry | None) -> bool:
    return before is not None and _newest(entry) < _newest(before)


def _newest(entry: Entry) -> str:
    return max(session.at for session in entry.sessions)


def _check_folder(name: str) -> None:
    """Check that something is meant to be a folder."""
    if "://" in name:
        raise UsageProblem(
            f"{name} is an address, and what is merged is folders",
            remedies=["copy it to a folder, and what was merged back to it"],
        )


def _files(folder: str) -> dict[str, Path]:
    """The baseline files of a folder, by their places in it."""
    _check_folder(folder)
    root = Path(folder)
    paths = {path.relative_to(root): path for path in sorted(root.rglob("*.json"))}
    files = {place.as_posix(): path for place, path in paths.items() if PUBLISHED not in place.parts}
    if not files:
        raise UsageProblem(
            f"{folder} has no baselines",
            looked=[os.path.abspath(folder)],  # noqa: PTH100 -- as it is, without following links
            remedies=["name a folder such as baselines/, which holds one folder a device"],
        )
    return files


def _check_place(folder: str, place: str, found: Mapping[str, Stored]) -> None:
    """Check that a file is where baselines of its device are."""
    devices = sorted({session.device.name for stored in found.values() for session in stored.entry.sessions})
    if any(device != place.partition("/")[0] for device in devices):
        raise UsageProblem(
            f"{folder} has baselines of {' and '.join(devices)} at {place}, where none is looked for",
            remedies=[f"name the folder that has the folder {devices[0]}, such as {folder}/baselines"],
        )


def _write_all(changes: Mapping[Path, Mapping[str, Entry]]) -> None:
    """Write all files, or leave all as they were."""
    old: dict[Path, bytes | None] = {}
    try:
        for path, entries in changes.items():
            old[path] = path.read_bytes() if path.exists() else None
            write(path, entries)
    except OSError as problem:
        _restore(old)
        raise BaselineUnusable("baselines cannot be written", found=str(problem)) from None
    except BaseException:
        # Ctrl-C too.
        _restore(old)
        raise


def _restore(old: Mapping[Path, bytes | None]) -> None:
    for path, data in old.items():
        if data is None:
            path.unlink(missing_ok=True)
        elif path.read_bytes() != data:
            write_whole(path, data)
