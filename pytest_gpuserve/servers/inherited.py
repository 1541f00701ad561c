"""The variables of a server: those that it inherits from the tests, and how its own stand in a workload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuserve.units import digest

if TYPE_CHECKING:
    from collections.abc import Mapping

STRIPPED_PREFIXES: Final = ("MOSEC_", "PYTRITON_", "TRITONSERVER_", "LITSERVE_", "LIT_")
"""Inherited variables of these names would change a server behind the baseline's back; ``env=`` may set them."""


def inherited_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of this process that a server gets too."""
    return {name: value for name, value in environment.items() if not name.startswith(STRIPPED_PREFIXES)}


def digests(environment: Mapping[str, str]) -> str:
    """Variables as a baseline names them: in the order of their names, without what they say."""
    return " ".join(f"{name}={digest(environment[name])}" for name in sorted(environment))
