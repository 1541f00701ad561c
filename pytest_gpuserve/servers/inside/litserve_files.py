"""The files in which the processes of a LitServe app say how they were set up, and what they count."""

from __future__ import annotations

import json
import os
import uuid
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.servers.inside.batch_tally import SUFFIX, Tally

if TYPE_CHECKING:
    from pathlib import Path

FACTS: Final = "server.json"
"""File in which the server says how it was set up."""

EXECUTIONS: Final = "executions"
"""Writers that count what a worker executes."""

ANSWERS: Final = "answers"
"""Writers that count what an HTTP process answers."""


def write_json(path: Path, value: object) -> None:
    """Write a file that is there at once and complete."""
    hidden = path.with_suffix(".new-json")
    hidden.write_text(json.dumps(value), encoding="utf-8")
    hidden.rename(path)


def open_tally(folder: Path, counts: str, path: str, largest: int, **more: object) -> Tally:
    """Begin a tally of this process; what it counts, and of which API path, is said in a file beside it."""
    stem = f"{counts}-{os.getpid()}-{uuid.uuid4().hex}"
    write_json(folder / f"{stem}.json", {"counts": counts, "path": path, **more})
    return Tally(folder / f"{stem}{SUFFIX}", largest)
