"""The base commit of a baseline: what else has changed since it, and why it cannot be measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from pytest_gpuserve.builds.worktree import ReferenceBuilds
from pytest_gpuserve.compare.baseline_store import BaselineKey
from pytest_gpuserve.compare.paired_runner import PairedRunner, PairedSpec, not_settled
from pytest_gpuserve.compare.screen import changes_since
from pytest_gpuserve.errors import GpuserveError, NotInRevision, ServerFailed
from pytest_gpuserve.store.baseline import Stored
from tests.compare.world import FakeOpponents
from tests.support.builders import COMMIT, entry, here

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpuserve.builds.worktree import ReferenceBuild
    from pytest_gpuserve.compare.side_by_side import SideBySide
    from pytest_gpuserve.store.schema import Entry

# -- what has changed since


def recorded(**changes: Any) -> Stored:  # noqa: ANN401 -- fields of an entry
    """A baseline that was recorded under other circumstances."""
    return Stored(msgspec.structs.replace(entry(), **changes), ())


@pytest.mark.parametrize(
    ("software", "expected"),
    [
        ({"python": "3.11.9"}, ()),
        ({"python": "3.11.8"}, ("python 3.11.8 -> 3.11.9",)),
        ({"python": "3.11.9", "torch": "2.8"}, ("torch 2.8 -> absent",)),
        ({}, ("python absent -> 3.11.9",)),
    ],
)
def test_changed_packages_are_named(software: Mapping[str, str], expected: tuple[str, ...]) -> None:
    """A package that is another, gone or new since the recording is a change."""
    assert changes_since(recorded(software=software), here()) == expected


# -- why it cannot be had


class Beside(PairedRunner):
    """Notes which build it compares with."""

    def __init__(self, reference_builds: ReferenceBuilds, problem: GpuserveError | None = None) -> None:
        self.reference_builds = reference_builds
        self.problem = problem
        self.compared: list[ReferenceBuild] = []

    def compare_builds(self, spec: PairedSpec, reference_build: ReferenceBuild) -> SideBySide:
        """See `PairedRunner`."""
        if self.problem is not None:
            raise self.problem
        self.compared.append(reference_build)
        return cast("SideBySide", "the comparison")

    def confirm(self, made: Entry, path: Path) -> SideBySide:
        """Make the comparison with the commit of a baseline ready."""
        path.touch()
        return self.compare_with_base(cast("PairedSpec", None), Stored(made, ()), BaselineKey(path, "test_a"))


def test_the_commit_of_the_baseline_is_compared_with(tmp_path: Path) -> None:
    """Not another revision, nor another interpreter."""
    paired_runner = Beside(FakeOpponents(tmp_path))
    assert paired_runner.confirm(entry(), tmp_path / "test_a.json") == cast("SideBySide", "the comparison")
    (reference_build,) = paired_runner.compared
    assert reference_build.identity == COMMIT
    assert "baseline's commit" in reference_build.name


def test_what_the_commit_does_not_have_is_a_reason(tmp_path: Path) -> None:
    """Code without a commit, or with changes on top, with what helps; no git; a server or interpreter that is gone."""
    reference_builds = FakeOpponents(tmp_path)
    dirty = msgspec.structs.replace(entry(), commit=None)
    for paired_runner, made, words in (
        (Beside(reference_builds), entry(commit=None), ["recorded outside of git"]),
        (Beside(reference_builds), dirty, ["uncommitted changes"]),
        (Beside(ReferenceBuilds(tmp_path)), entry(), ["there is no git checkout here"]),
        (Beside(reference_builds, NotInRevision("it has no app.py")), entry(), ["it has no app.py"]),
        (Beside(reference_builds, ServerFailed("it does not answer")), entry(), ["it does not answer"]),
    ):
        with pytest.raises(GpuserveError) as caught:
            paired_runner.confirm(made, tmp_path / "test_a.json")
        text = str(not_settled(caught.value))
        assert text.startswith("it could not be settled side by side: ")
        assert all(each in text for each in words)
