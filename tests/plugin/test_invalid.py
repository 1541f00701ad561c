"""A measurement that cannot be trusted is INVALID, says why, and is never recorded: real servers with real faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.gate.reason import ReasonKind
from tests.fakes.scripted_sessions import Script
from tests.plugin.conftest import says_no_traceback, text_of
from tests.support.reasons import because

if TYPE_CHECKING:
    from tests.plugin.conftest import Project


FOXY = "lambda body: (_ for _ in ()).throw(AssertionError('too foxy')) if body == b'FOX' else True"


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"wrong_every": 20}, ["*INVALID: throughput*", "*wrong answers:*expected b'FOX', got b'nonsense'*"]),
        # A check given as a function may raise; its words are in the message.
        ({"expect": FOXY}, ["*wrong answers:*AssertionError: too foxy*"]),
        # Not a pile of resets.
        ({"die_after": 100}, ["*INVALID: throughput*", "*died under load (killed by SIGKILL)*", "*fallen over*"]),
        # The server's queue holds two, eight users send.
        ({"capacity": 2}, ["*INVALID: throughput*", "*request errors (status 429: *"]),
    ],
    ids=["wrong answers", "a check that raises", "death under load", "refused requests"],
)
def test_faults_under_load_are_invalid(real_project: Project, faults: dict[str, Any], says: list[str]) -> None:
    """A server that is fast and wrong, dies or refuses does not pass; the message shows it, nothing is recorded."""
    real_project.write(**faults)
    result = real_project.run("--baseline-update")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(says)
    assert not real_project.baseline.exists()
    assert says_no_traceback(result)


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"exit_at_start": 3}, ["exit code 3", "no weights here"]),
        ({"exit_at_start": 0}, ["exit code 0"]),
        ({"start_seconds": 60, "start_timeout": 1}, ["start_timeout"]),
        ({}, ["refuses POST /no/such/route", "status 404"]),
    ],
    ids=["failure", "success", "too late", "a wrong path"],
)
def test_a_server_that_does_not_start_is_told(real_project: Project, faults: dict[str, Any], says: list[str]) -> None:
    """With its exit code and log, or what gives it longer; a wrong path is told as that, and at once."""
    real_project.write(**faults)
    if not faults:
        test = real_project.test_file
        test.write_text(test.read_text().replace('"/inference"', '"/no/such/route"'))
    result = real_project.run()
    result.assert_outcomes(failed=1)
    assert all(words in text_of(result) for words in says)
    assert says_no_traceback(result)


def test_a_test_without_assertions_does_not_hide_it(project: Project) -> None:
    """A load whose answers are wrong fails its test even if the test compares nothing."""
    project.write("")
    project.script = Script(problems=because("wrong answers: 3 of 9", kind=ReasonKind.WRONG_ANSWERS))
    result = project.run()
    result.assert_outcomes(passed=1, errors=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*INVALID: nothing can be concluded*", "*wrong answers: 3 of 9*"])
