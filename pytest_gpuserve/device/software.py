"""Versions of the software that a measurement depends on."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_DISTRIBUTIONS = (
    "pytest-gpuserve",
    "mosec",
    "torch",
    "transformers",
    "tritonclient",
    "litserve",
    "nvidia-pytriton",
    "numpy",
)
"""Distributions whose version can move a serving number."""


def read_software(distributions: Sequence[str] = DEFAULT_DISTRIBUTIONS) -> dict[str, str]:
    """Read the installed versions of distributions, and of Python, without importing any package.

    Absent ones are left out; one whose metadata has no version is ``unknown``.
    """
    versions = {"python": platform.python_version()}
    for distribution in distributions:
        with suppress(metadata.PackageNotFoundError):
            # A half-removed installation has metadata without a version, for which None comes back.
            versions[distribution] = metadata.version(distribution) or "unknown"
    return versions
