"""Letting a server's interpreter import this package, whatever else it has installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest_gpuserve
from pytest_gpuserve.servers.relocation import PYTHONPATH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.servers.base import Site


def with_own_package(site: Site, environment: Mapping[str, str]) -> dict[str, str]:
    """A server's variables, with which it imports this package, and nothing else of the tests' interpreter.

    The package comes first, so that both sides of a comparison measure with the same code, also where they compare two
    revisions of this package.

    Args:
        site: In its folder a link to the package is made.
        environment: The variables so far, on top of the inherited ones.
    """
    place = site.folder / "package"
    place.mkdir()
    package = Path(pytest_gpuserve.__file__).resolve().parent
    (place / package.name).symlink_to(package)
    before = environment.get(PYTHONPATH) or os.environ.get(PYTHONPATH, "")
    return {**environment, PYTHONPATH: os.pathsep.join(filter(None, (str(place), before)))}
