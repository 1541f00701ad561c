"""What a judgement was compared with: told on the terminal, in a comment and in the HTML report by one function."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.report.html.text import Texts
from pytest_gpuserve.report.html.verdicts import line_of
from pytest_gpuserve.report.markdown import comment
from pytest_gpuserve.report.ranking import rows_of
from pytest_gpuserve.report.terminal import table
from tests.support.builders import judgement, result_of
from tests.support.markdown_results import result_of_tests, rows_in

if TYPE_CHECKING:
    from pytest_gpuserve.gate.verdict import Judgement, ReferenceKind


def told(one: Judgement) -> tuple[str, str, str]:
    """The reference as it stands on the terminal, in a comment and in the HTML report."""
    test = result_of("t::test_z", one)
    drawn = table([test], width=200, color=False).splitlines()[-1]
    (row,) = rows_of(test)
    return (
        re.split(" {2,}", drawn.strip())[3],
        rows_in(comment(result_of_tests(test)))[0][3],
        line_of(row, "t", Texts(str)).cells["reference"],
    )


def test_a_limit_of_what_should_be_small_is_one_to_the_other_side() -> None:
    """A latency may be at most so long."""
    one = replace(judgement(metric="latency.p99", kind="limit"), reference=0.05)
    assert told(one) == ("<= 50.0 ms", "at most 50.0 ms", "limit: at most 50.0 ms")


@pytest.mark.parametrize("kind", ["baseline", "limit"])
def test_a_reference_that_is_not_known_is_no_number(kind: ReferenceKind) -> None:
    """Each says it in its own word, whatever kind it would have been."""
    assert told(judgement(Verdict.MISSING, kind=kind)) == ("-", "unknown", "not known")
