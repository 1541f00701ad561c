"""The order of rows: the worst first, the same for all reports."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpuserve.report.names import names_of, some_of
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.verdict import Verdict
from tests.support.builders import judgement, result_of, run_of

if TYPE_CHECKING:
    from pytest_gpuserve.report.results import TestResult
    from pytest_gpuserve.verdict.verdict import Judgement


def changed(change: float | None, verdict: Verdict = Verdict.REGRESSED, metric: str = "throughput") -> Judgement:
    """A judgement of this change; the tolerance of throughput is 5 %."""
    made = judgement(verdict, metric)
    return replace(made, change=change, interval=None, tolerance=METRICS[metric].default_tolerance)


def order(*tests: TestResult) -> list[str]:
    """The tests in the order of their rows."""
    return list(dict.fromkeys(row.test.nodeid for row in run_of(*tests).rows))


def test_by_outcome_then_by_verdict() -> None:
    """What failed, what was skipped, what passed; then REGRESSED, INVALID, MISSING, INCONCLUSIVE, and all that passes.

    An outcome that nobody has heard of is not taken for a pass.
    """
    in_order = [
        result_of("regressed", judgement(), outcome="a new one"),
        result_of("invalid", judgement(Verdict.INVALID), outcome="error"),
        result_of("missing", judgement(Verdict.MISSING)),
        result_of("inconclusive", judgement(Verdict.INCONCLUSIVE)),
        result_of("fine", judgement(Verdict.PASS), outcome="failed"),
        result_of("skipped", judgement(Verdict.INVALID), outcome="skipped"),
        result_of("passed", judgement(), outcome="passed"),
    ]
    assert order(*in_order[::-1]) == [test.nodeid for test in in_order]


def test_by_the_change_as_a_multiple_of_the_tolerance() -> None:
    """10 % of a tolerance of 5 % is wider than 30 % of one of 20 %, in either direction; no change is last."""
    rows = [
        changed(None),
        changed(0.30, metric="latency.p99"),
        changed(-0.10),
        changed(0.12, metric="latency.p50"),
    ]
    found = [row.judgement.change for row in run_of(result_of("t", *rows)).rows]
    assert found == [0.12, -0.10, 0.30, None]


def test_names() -> None:
    """Names are short, distinguished by the file if necessary, printable, and limited in number."""
    assert names_of(["a.py::test_z", "b.py::test_z", "b.py::test_q[\x1b]"]) == {
        "a.py::test_z": "a.py::test_z",
        "b.py::test_z": "b.py::test_z",
        "b.py::test_q[\x1b]": r"test_q[\x1b]",
    }
    assert some_of([]) == ""
    assert some_of(["a", "b", "c"]) == "a, b, c"
    assert some_of(["a", "b", "c", "d"]) == "a, b, c and 1 other"
    assert some_of(["a", "b", "c", "d", "e"]) == "a, b, c and 2 others"
