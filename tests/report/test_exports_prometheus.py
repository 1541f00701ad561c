"""Prometheus' text format: what a push gateway takes, and what a parser reads back."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from prometheus_client.parser import text_string_to_metric_families

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.yardstick import Yardstick
from pytest_gpuserve.report.exports.prometheus import FAMILIES, LATENCY, YARDSTICK, document
from tests.report.exported import NAMES, NODEID, load_of, named, one_test, overruled_and_last_word
from tests.support.builders import judgement, session, start, streamed, window

NAME = "[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})\{{({LABEL}(?:,{LABEL})*)\}} (\S+)")
"""A sample without a timestamp; all of ours have labels."""

COMMENT = re.compile(rf"# (HELP|TYPE) ({NAME}) (\S.*)")

BASE_UNITS = ("_info", "_outcome", "_verdict", "_ratio", "_seconds", "_bytes", "_joules", "_per_second", "_requests")


def checked(text: str) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """Read samples by family as strictly as a gateway, which is stricter than the Python parser.

    Each family is one block of HELP, TYPE and samples, no series is there twice, and no sample has a timestamp.
    """
    assert text.endswith("\n")
    blocks: list[tuple[str, str]] = []
    for line in text.removesuffix("\n").split("\n"):
        comment = COMMENT.fullmatch(line)
        if comment is not None and comment[1] == "HELP":
            blocks.append((comment[2], ""))
        elif comment is not None:
            assert blocks[-1] == (comment[2], "")
            blocks[-1] = comment[2], comment[3]
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample is not None, line
            name, kind = blocks[-1]
            assert sample[1] in ({name, f"{name}_sum", f"{name}_count"} if kind == "summary" else {name})
            float(sample[3])
    assert all(kind in {"gauge", "summary"} for _, kind in blocks)
    assert max(Counter(name for name, _ in blocks).values()) == 1
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample_read in family.samples:
            series = found.setdefault(sample_read.name, {})
            labels = frozenset(sample_read.labels.items())
            assert labels not in series
            series[labels] = sample_read.value
    return found


def labels(**more: str) -> frozenset[tuple[str, str]]:
    """The labels of a sample of the usual test's load."""
    return frozenset({"test": NODEID, "run": "", "gpu": "T4", **more}.items())


def test_latencies_are_a_summary() -> None:
    """Quantiles rise up to the exact maximum, and sum and count are those of all requests."""
    found = checked(document(one_test(load_of(sessions=[session(start(window((0.010,) * 99 + (0.5,))))]))))
    quantiles = {dict(each)["quantile"]: value for each, value in found[LATENCY].items()}
    assert list(quantiles) == ["0.5", "0.9", "0.95", "0.99", "1"]
    assert list(quantiles.values()) == sorted(quantiles.values())
    assert quantiles["0.99"] == pytest.approx(0.010, rel=1e-3)
    assert quantiles["1"] == 0.5
    assert found[f"{LATENCY}_count"] == {labels(): 100}
    assert found[f"{LATENCY}_sum"][labels()] == pytest.approx(99 * 0.010 + 0.5)


def test_the_machines_own_speed_is_told() -> None:
    """The geometric mean of its readings, a series for each kind of fixed work."""
    load = replace(load_of(), yardstick=Yardstick({"memory": (100.0, 400.0)}))
    found = checked(document(one_test(load)))
    assert found[YARDSTICK] == {labels(work="memory"): pytest.approx(200.0)}
    assert YARDSTICK not in checked(document(one_test(load_of())))


def test_what_is_not_sound_has_a_verdict_and_no_numbers() -> None:
    """A number that cannot be trusted is no sample, and no zero; that it is so is one."""
    found = checked(document(one_test(load_of(judgement(Verdict.INVALID)))))
    assert set(found) == {"gpuserve_session_info", "gpuserve_test_outcome", "gpuserve_verdict"}


def test_what_was_overruled_says_so_and_has_no_change() -> None:
    """An alert that leaves out what was overruled, or one of a change, goes by what was found side by side."""
    found = checked(document(one_test(load_of(*overruled_and_last_word()))))
    verdicts = {
        (dict(each)["reference"], dict(each)["verdict"], dict(each)["asserted"], dict(each)["overruled"])
        for each in found["gpuserve_verdict"]
    }
    assert verdicts == {("baseline", "REGRESSED", "true", "true"), ("against", "PASS", "true", "false")}
    paired = labels(metric="throughput", reference="against")
    assert found["gpuserve_change_ratio"] == {paired: -0.01}
    assert "gpuserve_change_lower_ratio" not in found
    assert set(found["gpuserve_tolerance_ratio"]) == set(found["gpuserve_detectable_ratio"]) == {paired}


def test_two_comparisons_of_a_kind_are_one_series() -> None:
    """Of several comparisons of a metric with printed numbers the gravest is told, whichever came first.

    What was judged afterwards decides nothing: it is told as such, and hides no comparison that was asserted.
    """
    both = [judgement(verdict, kind="published") for verdict in (Verdict.PASS, Verdict.REGRESSED)]
    for loads in (both, both[::-1]):
        found = checked(document(one_test(load_of(*loads))))
        assert [dict(each)["verdict"] for each in found["gpuserve_verdict"]] == ["REGRESSED"]
    late = judgement(Verdict.INCONCLUSIVE).unasserted()
    found = checked(document(one_test(load_of(late), load_of(late, judgement(Verdict.PASS), late, label="load 2"))))
    verdicts = {
        (dict(each)["run"], dict(each)["verdict"], dict(each)["asserted"]) for each in found["gpuserve_verdict"]
    }
    assert verdicts == {("", "INCONCLUSIVE", "false"), ("load 2", "PASS", "true")}


def test_names_end_in_their_unit() -> None:
    """Whoever sees a name knows the unit; each metric is a quantile of the summary, or has a family of its own."""
    assert set(FAMILIES) == {metric.times or metric.name for metric in METRICS.values()} - {"latency"}
    whole = session(start(streamed(window(), good=8)))
    found = checked(document(one_test(load_of(judgement(), sessions=(whole,)))))
    times = {dict(each)["quantile"]: value for each, value in found["gpuserve_ttft_seconds"].items()}
    assert times == pytest.approx(dict.fromkeys(("0.5", "0.9", "0.95", "0.99"), 0.004), rel=6e-4)
    assert all(name.startswith("gpuserve_") and name.endswith((*BASE_UNITS, "_sum", "_count")) for name in found)


@given(NAMES)
def test_no_name_breaks_a_line(nodeids: list[str]) -> None:
    """Whatever tests are called, each is read back as one line that can be printed."""
    found = checked(document(named(*nodeids)))
    tests = [dict(each)["test"] for each in found["gpuserve_test_outcome"]]
    assert len(set(tests)) == len(nodeids)
    assert all(test.isprintable() for test in tests)
