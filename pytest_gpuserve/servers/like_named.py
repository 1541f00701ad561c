"""Where else below a folder there is a file of a name, for a name that led nowhere."""

from __future__ import annotations

import os
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Final

ENTRIES: Final = 20_000
"""Looked at before the search is given up: an error is told at once, also in a huge checkout or on a slow disk."""

NEVER_MEANT: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
"""Folders in which nobody's own files lie, beside hidden ones and virtual environments."""


def like_named(root: Path, name: str, *, folder: bool, most: int, entries: int = ENTRIES) -> list[Path]:
    """Find files of a name, or folders, those that lie the least deep first.

    Args:
        root: Below which to look.
        name: The last part of the path.
        folder: Whether a folder is looked for.
        most: How many are enough.
        entries: How many entries of folders are looked at.
    """
    found: list[Path] = []
    waiting = deque([root])
    left = entries
    while waiting and left > 0 and len(found) < most:
        listed = _listed(waiting.popleft(), left)
        left -= len(listed)
        for entry in listed:
            if entry.name == name and (entry.is_dir() if folder else entry.is_file()):
                found.append(Path(entry.path))
            elif entry.is_dir(follow_symlinks=False) and not _is_left_out(entry):
                waiting.append(Path(entry.path))
    return found[:most]


def _listed(folder: Path, most: int) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listed:
            return sorted(islice(listed, most), key=lambda entry: entry.name)
    except OSError:
        # Somebody else's, or gone meanwhile: a hint is not worth another error.
        return []


def _is_left_out(folder: os.DirEntry[str]) -> bool:
    if folder.name.startswith(".") or folder.name in NEVER_MEANT:
        return True
    # Unlike pathlib's it answers for a folder that may not be entered too.
    return os.path.exists(os.path.join(folder.path, "pyvenv.cfg"))  # noqa: PTH110, PTH118
