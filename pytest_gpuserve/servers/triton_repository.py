"""A model repository on the disk: what is in it, and the same one in another checkout."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process.git import git_text
from pytest_gpuserve.servers.triton_config import CONFIG_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

HASHED_BYTES: Final = 8 << 20
"""Larger files, weights as a rule, are told apart by size and time: reading them would take longer than a start."""

LISTED_FILES: Final = 32
"""A model with more files than this is told by one hash over all."""

CODE: Final = frozenset({".py", ".pbtxt", ".so"})
"""What makes a model what it is; the rest is its data."""

_STEP = re.compile(r"""\bmodel_name\s*:\s*["']([^"']+)["']""")

_PYTHON = re.compile(r"""^\s*backend\s*:\s*["']python["']""", re.MULTILINE)
_OTHER_FILE = re.compile(r"\bdefault_model_filename\b")


def model_folders(repository: Path, models: Iterable[str]) -> list[Path]:
    """The folders of these models, and of the models that those ensembles are made of; of all where none is named."""
    names = list(models) or sorted(entry.name for entry in repository.iterdir() if entry.is_dir())
    found: dict[str, Path] = {}
    while names:
        name = names.pop(0)
        folder = repository / name
        if name in found or not folder.is_dir():
            continue
        found[name] = folder
        names += _STEP.findall(config_text(folder))
    return [found[name] for name in sorted(found)]


def main_model(repository: Path, models: Sequence[str]) -> str:
    """The one that requests name as a rule: the one model to load, or the one ensemble; empty where neither is one."""
    folders = [repository / name for name in models] or model_folders(repository, ())
    ensembles = [folder for folder in folders if "ensemble_scheduling" in config_text(folder)]
    return next((found[0].name for found in (folders, ensembles) if len(found) == 1), "")


def config_text(model: Path) -> str:
    """The text of a model's configuration; empty where it has none, which Triton allows for some backends."""
    try:
        return (model / CONFIG_FILE).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def check_files(folders: Iterable[Path]) -> None:
    """See that Python models have their file: without it Triton's start does not fail, it hangs.

    Raises:
        ServerFailed: One has not.
    """
    for folder in folders:
        text = config_text(folder)
        if not _PYTHON.search(text) or _OTHER_FILE.search(text):
            continue
        versions = [entry for entry in folder.iterdir() if entry.is_dir() and entry.name.isdecimal()]
        missing = [version / "model.py" for version in versions if not (version / "model.py").is_file()]
        if missing or not versions:
            raise ServerFailed(
                f"triton_server: a file of model {folder.name} is missing",
                found=f"there is no {missing[0] if missing else folder / '1' / 'model.py'}",
                looked=[str(folder / CONFIG_FILE)],
                remedies=["a Python model's code is in MODEL/1/model.py, with a folder for each version"],
            )


def fingerprints(folders: Iterable[Path]) -> dict[str, str]:
    """What tells the files of these models from other ones, by their paths: a hash, or size and time of large ones."""
    found = {}
    for folder in folders:
        files = [file for file in sorted(folder.rglob("*")) if file.is_file() and "__pycache__" not in file.parts]
        told = {f"{folder.name}/{file.relative_to(folder).as_posix()}": _fingerprint(file) for file in files}
        if len(told) > LISTED_FILES:
            whole = hashlib.sha256("\n".join(f"{name} {told[name]}" for name in told).encode()).hexdigest()
            told = {f"{folder.name}/": f"{len(told)} files, sha256:{whole}"}
        found.update(told)
    return found


def untracked_data(repository: Path) -> list[Path]:
    """Files of the repository that git does not track, such as weights, as far as they are no code."""
    listed = git_text(repository, "ls-files", "--others", "-z", "--", ".") or ""
    files = [repository / name for name in listed.split("\0") if name]
    return [file for file in files if file.suffix not in CODE and "__pycache__" not in file.parts]


def overlay(repository: Path, data: Sequence[Path], origin: Path, folder: Path) -> Path:
    """Put another checkout's repository together with the data that git did not bring there, by links.

    Args:
        repository: The other checkout's.
        data: Files of this checkout's repository that the other one shares.
        origin: This checkout's repository.
        folder: Where to make it.

    Returns:
        The repository itself where it has all, else the folder.
    """
    missing = {
        inside: file
        for file in data
        if (repository / (inside := file.relative_to(origin)).parts[0]).is_dir() and not (repository / inside).exists()
    }
    if not missing:
        return repository
    for file in repository.rglob("*"):
        if not file.is_dir() and "__pycache__" not in file.parts:
            _link(folder / file.relative_to(repository), file)
        elif file.is_dir():
            (folder / file.relative_to(repository)).mkdir(parents=True, exist_ok=True)
    for inside, file in missing.items():
        _link(folder / inside, file)
    return folder


def _link(place: Path, file: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(file.absolute())


def _fingerprint(file: Path) -> str:
    status = file.stat()
    if status.st_size > HASHED_BYTES:
        return f"{status.st_size} bytes, changed at {status.st_mtime_ns / 1e9:.3f}"
    return f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
