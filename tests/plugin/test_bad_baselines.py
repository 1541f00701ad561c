"""A baseline file that cannot be trusted: named with its field, before anything is measured, and left as it is."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.scripted_sessions import Script
from tests.plugin.conftest import says_no_traceback, text_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.plugin.conftest import Project


def window_of(file: dict[str, Any]) -> dict[str, Any]:
    """The first window of the file."""
    window: dict[str, Any] = file["entries"]["test_it"]["sessions"][0]["starts"][0]["windows"][0]
    return window


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "negative": (
        lambda file: window_of(file).update(seconds=-0.5),
        "entries['test_it'].sessions[0].starts[0].windows[0].seconds",
    ),
    "nan": (lambda file: window_of(file).update(latency_sum_seconds=float("nan")), "not whole JSON"),
    "newer": (lambda file: file.update(schema=99), "upgrade"),
    "older": (lambda file: file.update(schema=0), "schema 0"),
    "edited": (lambda file: file["summary"]["test_it"].update(throughput=1.0), "summary['test_it'].throughput"),
    "truncated": (lambda file: None, "truncated"),
    "conflict": (lambda file: None, "not whole JSON"),
}
"""What is wrong with a file, and what is said of it."""


def damaged(file: dict[str, Any], damage: str) -> str:
    """The text of a file that was damaged so."""
    DAMAGE[damage][0](file)
    text = json.dumps(file)
    return {"truncated": text[: len(text) // 2], "conflict": f"<<<<<<< HEAD\n{text}"}.get(damage, text)


@pytest.mark.parametrize("options", [(), ("--baseline-update",)], ids=["gating", "recording"])
def test_damage_is_named_and_nothing_is_lost(project: Project, recorded: Path, options: tuple[str, ...]) -> None:
    """The test fails unmeasured, the message names file and field, the file keeps its bytes, no traceback is shown."""
    # A measurement would end the run like Ctrl-C.
    project.script = Script(interrupted_session=1)
    project.baseline.parent.mkdir(parents=True)
    texts = {}
    for damage in DAMAGE:
        file = project.baseline.with_name(f"test_{damage}.json")
        texts[file] = damaged(json.loads(recorded.read_text()), damage)
        file.write_text(texts[file])
        shutil.copy(project.test_file, project.test_file.with_name(f"test_{damage}.py"))
    project.test_file.unlink()
    result = project.run(*options)
    result.assert_outcomes(failed=len(DAMAGE))
    assert result.ret == 1
    assert says_no_traceback(result)
    told = text_of(result).split("baseline file ")
    for (file, text), (_, named) in zip(texts.items(), DAMAGE.values(), strict=True):
        assert any(part.startswith(str(file)) and named in part for part in told), (file.name, told)
        assert file.read_text() == text


def test_a_baseline_that_does_not_fit_is_missing(project: Project, recorded: Path) -> None:
    """Of another load, which is named with both values, or too thin for a tighter tolerance, with what helps."""
    project.store(recorded)
    text = project.test_file.read_text()
    project.test_file.write_text(text.replace("concurrency=8", "concurrency=9"))
    other = project.run()
    other.assert_outcomes(failed=1)
    other.stdout.fnmatch_lines(
        ["*MISSING: throughput*", "*has another workload*", "*concurrency: baseline has '8', this run has '9'*"]
    )
    project.write(marker="@pytest.mark.gpuserve(throughput=0.0001)")
    thin = project.run()
    thin.assert_outcomes(failed=1)
    thin.stdout.fnmatch_lines(
        ["*MISSING: throughput*", "*needs 20000 requests a server start*", "*load(..., seconds=*"]
    )
