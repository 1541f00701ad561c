"""Facts that a server with our code writes about its start; the test process reads them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_facts(path: Path, value: object) -> None:
    """Write a JSON file atomically, readable only for its owner, because it may hold a token."""
    hidden = path.with_name(f"{path.name}.new")
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - of a descriptor
        json.dump(value, file)
    hidden.replace(path)
