"""A baseline file that cannot be trusted: named with its field, before anything is measured, and left as it is."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.fakes.scripted_starts import Script
from tests.plugin.conftest import says_no_traceback, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project


@pytest.mark.parametrize("options", [(), ("--baseline-update",)], ids=["gating", "recording"])
def test_damage_is_named_and_nothing_is_lost(project: Project, recorded: Path, options: tuple[str, ...]) -> None:
    """The test fails unmeasured, the message names file and field, the file keeps its bytes, no traceback is shown."""
    # A measurement would end the run like Ctrl-C.
    project.script = Script(interrupted_start=1)
    file = json.loads(recorded.read_text())
    file["entries"]["test_it"]["sessions"][0]["starts"][0]["seconds"] = -0.5
    project.baseline.parent.mkdir(parents=True)
    project.baseline.write_text(text := json.dumps(file))
    result = project.run(*options)
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    field = "entries['test_it'].sessions[0].starts[0].seconds"
    assert re.search(rf"baseline file {re.escape(str(project.baseline))}\b.*{re.escape(field)}", text_of(result))
    assert says_no_traceback(result)
    assert project.baseline.read_text() == text


def test_a_baseline_of_another_load_is_missing(project: Project, recorded: Path) -> None:
    """A baseline of another load is named with both values."""
    project.store(recorded)
    text = project.test_file.read_text()
    project.test_file.write_text(text.replace("concurrency=8", "concurrency=9"))
    other = project.run()
    other.assert_outcomes(failed=1)
    other.stdout.fnmatch_lines(
        ["*MISSING: throughput*", "*has another workload*", "*concurrency: baseline has '8', this run has '9'*"]
    )
