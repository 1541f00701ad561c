"""The header's estimate of a run's duration."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.plugin.conftest import text_of

if TYPE_CHECKING:
    from tests.plugin.conftest import Project


def test_the_header_knows_how_long_the_last_run_took(project: Project) -> None:
    """The time is a guess at first, and then that of the last run of this kind on this device."""
    project.run("--baseline-update")
    first, second = text_of(project.run()), text_of(project.run())
    assert "gpuserve: comparisons of 1 test, about 30 s (a guess, without an earlier run on this device)\n" in first
    told = re.search(r"gpuserve: comparisons of 1 test, about (\d+) s\n", second)
    assert told is not None
    # It measures no real server.
    assert int(told[1]) < 30
    assert "comparisons of" not in text_of(project.run("-q"))
