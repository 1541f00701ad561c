"""Which versions a Ray node runs, and why it may not take part in a load."""

from __future__ import annotations

import msgspec

NOT_INSTALLED = ""
"""In the place of a version."""


class Versions(msgspec.Struct, frozen=True):
    """What a process runs.

    Args:
        python: Of its interpreter, as ``3.11.7``.
        ray: Of Ray.
        package: Of pytest-gpuserve; empty where it is not installed.
    """

    python: str
    ray: str
    package: str


def difference(theirs: Versions, ours: Versions) -> str:
    """Say why processes of these versions cannot share a load; empty if they can.

    Python's may differ in the last number: what travels between them are messages of this package.
    """
    found = []
    if theirs.package == NOT_INSTALLED:
        found.append(f"pytest-gpuserve is not installed, here it is {ours.package}")
    elif theirs.package != ours.package:
        found.append(f"pytest-gpuserve {theirs.package}, here {ours.package}")
    if theirs.ray != ours.ray:
        found.append(f"ray {theirs.ray}, here {ours.ray}")
    if _minor(theirs.python) != _minor(ours.python):
        found.append(f"Python {theirs.python}, here {ours.python}")
    return "; ".join(found)


def remedies(found: list[Versions], ours: Versions) -> list[str]:
    """What to run on nodes of these versions, so that they can share a load with ours."""
    help_by_kind = {
        f"on each of these nodes: pip install pytest-gpuserve=={ours.package}": any(
            theirs.package != ours.package for theirs in found
        ),
        f"on each of these nodes, and where it was started: pip install ray=={ours.ray}": any(
            theirs.ray != ours.ray for theirs in found
        ),
        f"start these nodes with Python {_minor(ours.python)}, or pytest with theirs": any(
            _minor(theirs.python) != _minor(ours.python) for theirs in found
        ),
    }
    return [text for text, helps in help_by_kind.items() if helps]


def _minor(python: str) -> str:
    return ".".join(python.split(".")[:2])
