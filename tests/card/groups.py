"""What a machine with a card may lack, in groups by their worth: requirements of this package, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

FOLDER: Final = ROOT / ".card"
"""Where the pack lies; git ignores it."""

MANIFEST: Final = "pack.json"

TORCH: Final = "torch"
"""What every machine with a card is taken to have, with all that it requires."""

_OWN: Final = "pytest-gpuserve["
"""Begins a requirement that only names other extras of this package."""

_TESTS: Final = ("hypothesis>=6.100", "pytest-xdist>=3.6")
"""What tests that need a card import beside the package's own requirements."""

CORE: Final = "core"

TRITON: Final = "triton"
"""The one group that needs numpy 1, and so an environment of its own."""

EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    CORE: (),
    "mosec": ("mosec",),
    "suites": ("suites",),
    "litserve": ("litserve",),
    TRITON: ("triton", "pytriton"),
}
"""Groups in the order of their worth, and the extras of each; what does not fit is left out from the end."""


def groups() -> dict[str, list[str]]:
    """Read the requirements of each group from the project's own lists."""
    import tomllib  # type: ignore[import-not-found]  # Python 3.11 has it, where packs are made

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {
        name: [text for key in keys for text in project["optional-dependencies"][key]] for name, keys in EXTRAS.items()
    }
    found[CORE] = [*project["dependencies"], *_TESTS]
    return {name: [text for text in texts if not text.startswith((_OWN, TORCH))] for name, texts in found.items()}


def packed_groups(pack: Path, python: str) -> dict[str, list[str]]:
    """Read what a pack has of each group for a version of Python, as ``name==version``; nothing where there is none."""
    try:
        pythons: dict[str, dict[str, list[str]]] = json.loads((pack / MANIFEST).read_text(encoding="utf-8"))["pythons"]
    except FileNotFoundError:
        return {}
    return pythons.get(python, {})
