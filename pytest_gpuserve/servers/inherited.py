"""The variables that a server inherits from the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

STRIPPED_PREFIXES: Final = ("MOSEC_", "PYTRITON_", "TRITONSERVER_", "LITSERVE_", "LIT_")
"""Inherited variables of these names would change a server behind the baseline's back; ``env=`` may set them."""


def inherited_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of this process that a server gets too."""
    return {name: value for name, value in environment.items() if not name.startswith(STRIPPED_PREFIXES)}
