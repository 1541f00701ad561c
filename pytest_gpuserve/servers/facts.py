"""What a server that runs our code says of itself: a JSON file in its folder, written at its start."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_gpuserve.errors import ServerFailed

if TYPE_CHECKING:
    from pathlib import Path


def read_facts(place: Path, *, who: str, remedy: str) -> dict[str, Any]:
    """Read them.

    Args:
        place: The file.
        who: Should have written it, for the message.
        remedy: What helps where it did not.

    Raises:
        ServerFailed: There is no such file, or no JSON object in it.
    """
    try:
        facts = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise _unsaid(place, who, remedy, str(problem)) from None
    if not isinstance(facts, dict):
        raise _unsaid(place, who, remedy, repr(facts))
    return facts


def _unsaid(place: Path, who: str, remedy: str, found: str) -> ServerFailed:
    return ServerFailed(f"{who} does not say how it was set up", found=found, looked=[str(place)], remedies=[remedy])
