"""A small file of published numbers, for the tests of what is made of it."""

from __future__ import annotations

from typing import Any


def record(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 -- fields of a record
    """An entry as in a file: a closed loop of 50 users, without a p99."""
    return {
        "keys": {"system": "mosec", "batch": 1, "concurrency": 50},
        "line": 79,
        "tool": "hey",
        "load": "hey -c 50",
        "schedule": "closed",
        "printed": {"throughput": 2000.0, "unit": "requests/s"},
        "values": {"throughput": 2000.0, "latency.p50": 0.02},
        "bias": ["the card was warm"],
        **changes,
    }


def published_file(*records: dict[str, Any]) -> dict[str, Any]:
    """A file of these entries."""
    return {
        "schema": 1,
        "document": {
            "repository": "someone/bench",
            "path": "results/bert.md",
            "revision": "7569dd7",
            "sha256": "ab" * 32,
        },
        "gpu": "NVIDIA T4",
        "entries": list(records),
    }
