"""Numbers that others published for the suites' systems: ``baselines/<device>/published/<suite>.json``.

A record has its document and line, the throughput as printed, and its values in a baseline's units (requests a second,
seconds, bytes, shares). Values that were not printed are absent. A record is one value without samples. So a test
compares it as a limit, with a share for differences of host, driver and packages.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

BASELINES: Final = Path(__file__).parents[1] / "baselines"

LEAST: Final = 0.9
"""Share of a printed value that must be reached, if more is better."""

MOST: Final = 1.1
"""Share of a printed value that must not be exceeded, if less is better."""

NAMELESS: Final = "unnamed"
"""Folder of numbers for a device without a name."""


def records_of(suite: str) -> dict[str, list[dict[str, Any]]]:
    """Read a suite's records, by their devices."""
    files = sorted(BASELINES.glob(f"*/published/{suite}.json"))
    return {file.parents[1].name: json.loads(file.read_text(encoding="utf-8"))["entries"] for file in files}


def published(device: str, suite: str, **keys: str | float) -> dict[str, float]:
    """The values of the one record with these keywords; the test is skipped if this device has none.

    Raises:
        ValueError: No record has such keywords, or several records match.
    """
    records = records_of(suite)
    unknown = keys.keys() - {name for each in records.values() for record in each for name in record["keys"]}
    if unknown:
        raise ValueError(f"no record of {suite} has {', '.join(sorted(unknown))}")
    here = [] if device == NAMELESS else records.get(device, [])
    found = [record.get("values", {}) for record in here if keys.items() <= record["keys"].items()]
    if not found:
        pytest.skip(f"no number was published for {device} in {suite} with {keys}")
    if len(found) > 1:
        raise ValueError(f"{keys} describes {len(found)} records of {suite} for {device}")
    values: dict[str, float] = found[0]
    return values
