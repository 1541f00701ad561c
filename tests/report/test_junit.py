"""Properties of a test case in a JUnit file: a name for each number, and none for what is not known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.report.junit import properties
from pytest_gpuserve.report.results import RunResult
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.verdict import Judgement, ReferenceKind, Verdict
from tests.support.builders import judgement

if TYPE_CHECKING:
    from collections.abc import Sequence


def run(*judgements: Judgement, label: str = "") -> RunResult:
    """A load with these judgements."""
    return RunResult(label, (), judgements, {}, {})


def of(*judgements: Judgement, label: str = "") -> dict[str, str]:
    """The properties of that load; no name is there twice."""
    named = properties([run(*judgements, label=label)])
    assert len(dict(named)) == len(named)
    return dict(named)


def test_a_metric_has_all_that_is_known_of_it() -> None:
    """Numbers are those of the JSON result, in its units; unknown ones are absent."""
    assert of(judgement(reasons=("slower", "much"))) == {
        "gpuserve.throughput.verdict": "REGRESSED",
        "gpuserve.throughput.value": "1432.0",
        "gpuserve.throughput.unit": "1/s",
        "gpuserve.throughput.reference": "2047.0",
        "gpuserve.throughput.reference_kind": "baseline",
        "gpuserve.throughput.change": "-0.301",
        "gpuserve.throughput.interval": "[-0.341, -0.262]",
        "gpuserve.throughput.tolerance": "0.05",
        "gpuserve.throughput.rounds": "2",
        "gpuserve.throughput.reasons": "slower\nmuch",
    }
    assert of(judgement(Verdict.MISSING, "batching_ratio")) == {
        "gpuserve.batching_ratio.verdict": "MISSING",
        "gpuserve.batching_ratio.reference_kind": "baseline",
        "gpuserve.batching_ratio.reasons": "a reason",
    }
    assert of(replace(judgement(Verdict.PASS), change=0.0))["gpuserve.throughput.change"] == "0.0"
    assert properties([]) == properties([run()]) == []


@pytest.mark.parametrize(
    ("kinds", "plain", "others"),
    [
        (["baseline", "limit"], "baseline", ["limit"]),
        (["limit", "baseline"], "baseline", ["limit"]),
        (["limit"], "limit", []),
    ],
)
def test_a_metric_with_several_references(kinds: Sequence[ReferenceKind], plain: str, others: Sequence[str]) -> None:
    """The plain name is that of the one which counts for most; each has a name of its own."""
    named = of(*[judgement(kind=kind) for kind in kinds])
    assert named["gpuserve.throughput.reference_kind"] == plain
    verdicts = {name for name in named if name.endswith(".verdict")}
    assert verdicts == {f"gpuserve.throughput{other}.verdict" for other in ("", *(f".{other}" for other in others))}


def test_loads_are_told_apart() -> None:
    """The first one needs no name."""
    named = properties([run(judgement()), run(judgement(), label="warm")])
    assert {"gpuserve.throughput.value", "gpuserve.warm.throughput.value"} <= set(dict(named))
    assert len(dict(named)) == len(named)


@given(text=st.text(alphabet=st.characters(), max_size=20), metric=st.sampled_from(sorted(METRICS)))
def test_any_text_can_be_written(text: str, metric: str) -> None:
    """Names and values pass through XML and a worker's pipe, which do not accept all characters."""
    named = properties([run(judgement(Verdict.INVALID, metric, reasons=(text or "a",)), label=text)])
    for name, value in named:
        assert all(sign.isprintable() for sign in name)
        assert all(sign.isprintable() or sign == "\n" for sign in value)
        (name + value).encode()
