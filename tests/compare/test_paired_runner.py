"""The build that a baseline is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_gpuserve.builds.base import NotInGit
from pytest_gpuserve.compare.baseline_store import BaselineKey
from pytest_gpuserve.compare.paired_runner import PairedRunner, PairedSpec
from pytest_gpuserve.store.baseline import Stored
from tests.compare.world import FakeOpponents
from tests.support.builders import entry

if TYPE_CHECKING:
    from pathlib import Path


def test_an_entry_outside_of_git_without_a_commit_has_no_base(tmp_path: Path) -> None:
    """Nothing is compared with: a build without a revision would be this checkout, and pass beside itself."""
    path = tmp_path / "test_a.json"
    path.touch()
    nothing: dict[str, Any] = dict.fromkeys(("here", "kept", "progress", "read_host", "against", "starts"))
    paired_runner = PairedRunner(reference_builds=FakeOpponents(tmp_path), **nothing)
    with pytest.raises(NotInGit, match="recorded outside git or with uncommitted changes"):
        paired_runner.compare_with_base(
            cast("PairedSpec", None), Stored(entry(commit=None), ()), BaselineKey(path, "test_a")
        )
