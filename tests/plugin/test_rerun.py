"""A comparison side by side that is run again goes on where it was: it never tries its luck a second time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.scripted_starts import Script
from tests.plugin.conftest import text_of

if TYPE_CHECKING:
    from tests.plugin.conftest import Checkout, Project

JSON = "--gpuserve-json=out.json"

UNDECIDED = "--gpuserve-budget=0.000001"
"""One look a run: the first is always taken, and the time of the next is unknown."""


KEPT = "for this very pair of builds, and kept"


def verdict(project: Project) -> dict[str, Any]:
    """The one verdict of a run with a JSON result."""
    (only,) = project.result()["verdicts"]
    found: dict[str, Any] = only
    return found


@pytest.fixture
def decided(project: Project, checkout: Checkout) -> Project:
    """A project whose uncommitted slower build was called REGRESSED; what is run next would be as fast as the base."""
    project.speed(0.8)
    assert project.run("--against=HEAD", JSON).ret == pytest.ExitCode.TESTS_FAILED
    assert checkout.servers() != []
    return project


def test_the_same_pair_measures_nothing_and_says_so(decided: Project, checkout: Checkout) -> None:
    """A decision stays, when it is committed too, until ``--cache-clear`` forgets it; no server is started."""
    first = verdict(decided)
    result = decided.run("--against=HEAD", JSON)
    result.assert_outcomes(failed=1)
    assert checkout.servers() == []
    again = verdict(decided)
    assert (again["verdict"], again["rounds"]) == ("REGRESSED", first["rounds"])
    assert again["value"] == pytest.approx(first["value"], rel=1e-4)
    assert KEPT in text_of(result)
    assert "`--cache-clear` forgets it" in text_of(result)
    checkout.commit("slower")
    decided.run("--against=HEAD~1").assert_outcomes(failed=1)
    assert checkout.servers() == []
    result = decided.run("--against=HEAD~1", "--cache-clear")
    result.assert_outcomes(failed=1)
    assert checkout.servers() != []
    assert "and kept" not in text_of(result)


def test_what_was_interrupted_goes_on(project: Project, checkout: Checkout) -> None:
    """After Ctrl-C in the second round the next run has the first round, and measures the second again."""
    project.speed(0.94)
    project.script = Script(interrupted_start=4)
    assert project.run("--against=HEAD").ret == pytest.ExitCode.INTERRUPTED
    checkout.servers()
    project.script = Script()
    project.run("--against=HEAD", UNDECIDED, JSON)
    starts = [line for line in checkout.servers() if line.startswith("start")]
    assert (len(starts), verdict(project)["rounds"]) == (2, 2)
