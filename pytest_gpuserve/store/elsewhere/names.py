"""Which files in a storage are baselines: ``<device>/.../<file>.json``, and nothing that leads out of the folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.store.published import FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_FILES: Final = 10_000
"""A folder with more of them holds something else."""

SUFFIX: Final = ".json"


def is_baseline_name(name: str) -> bool:
    """Whether a name, relative to the folder, is that of a baseline file or of published numbers."""
    parts = name.split("/")
    inside = not {"", ".", ".."}.intersection(parts) and "\0" not in name
    return inside and len(parts) > 1 and name.endswith(SUFFIX)


def is_for(name: str, device: str) -> bool:
    """Whether a session on a device may need a file: its own baselines, and what was published of any device."""
    first, second, *_ = name.split("/")
    return first == device or second == FOLDER


def versions_below(found: Mapping[str, Mapping[str, Any]], root: str, url: str) -> dict[str, str]:
    """Names and versions of the baseline files among what fsspec lists.

    Args:
        found: What a file system says of each file, by its path there.
        root: Path of the folder there.
        url: For messages.

    Raises:
        UsageProblem: There are more than `MOST_FILES` of them.
    """
    prefix = f"{root.rstrip('/')}/"
    names = {path.removeprefix(prefix): info for path, info in found.items() if path.startswith(prefix)}
    versions = {name: version_of(info) for name, info in names.items() if is_baseline_name(name)}
    if len(versions) > MOST_FILES:
        raise UsageProblem(
            f"--baseline-dir={url}: this is no folder of baselines alone",
            found=f"{len(versions)} files that could be some",
            remedies=["name the folder that has those of the devices in it"],
        )
    return versions


def version_of(info: Mapping[str, Any]) -> str:
    """What tells states of a file apart, by what fsspec says of it; empty where nothing does."""
    return str(info.get("ETag") or info.get("etag") or "")
