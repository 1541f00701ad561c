"""The build that a baseline is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.builds.base import NotInGit
from pytest_gpuserve.store.baseline import Stored
from tests.compare.world import SHAPE, target
from tests.support.builders import entry

if TYPE_CHECKING:
    from tests.compare.world import World


def test_an_entry_outside_of_git_without_a_commit_has_no_base(world: World) -> None:
    """Nothing is compared with: a build without a revision would be this checkout, and pass beside itself."""
    judge = world.judge()
    judge.measure(target(), SHAPE, None)
    (measurement,) = judge.measurements
    measurement.baseline_key.path.parent.mkdir(parents=True)
    measurement.baseline_key.path.touch()
    with pytest.raises(NotInGit, match="recorded outside git or with uncommitted changes"):
        measurement.pair_with_base(Stored(entry(commit=None), ()))
