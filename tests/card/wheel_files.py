"""Small wheels, for the tests of what is made of them."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def wheel(folder: Path, name: str, version: str = "1.0", files: Mapping[str, bytes] | None = None) -> Path:
    """A wheel of a module, and of programs beside it."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "")
        for file, data in (files or {}).items():
            entry = zipfile.ZipInfo(f"{name}/{file}")
            entry.external_attr = 0o755 << 16
            archive.writestr(entry, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path
