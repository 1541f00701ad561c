"""What is said of replicas in the terminal, in the JSON result and in the HTML report."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.measure.replicas import ReplicaResult
from pytest_gpuserve.measure.window import ReplicaWindow, Session, Start
from pytest_gpuserve.report.html import document as page_document
from pytest_gpuserve.report.remarks import imbalance_text, replica_lines
from pytest_gpuserve.report.result_json import document
from pytest_gpuserve.report.results import SessionResult, TestResult
from tests.report.html_results import HOSTILE
from tests.support.builders import histogram, judgement, result_of, session, window
from tests.support.html_page import Page

SECRET = "hunter2secret"


def of(name: str, requests: int = 100, latency_seconds: float = 0.01, **errors: int) -> ReplicaWindow:
    """What a replica did in a window."""
    return ReplicaWindow(name, requests, errors, histogram([latency_seconds] * requests))


def session_of(*replicas: ReplicaWindow, counters: Counters | None = None) -> Session:
    """A session of a single window in which replicas did this."""
    return session(Start((replace(window(), replicas=replicas),), None, counters=counters))


def a_result(*replicas: ReplicaWindow, counters: Counters | None = None, name: str = "test_a") -> TestResult:
    """A test whose load they shared."""
    return result_of(f"t.py::{name}", judgement(), sessions=(session_of(*replicas, counters=counters),))


def plain_run(test: TestResult) -> dict[str, Any]:
    """The load of a test, as the JSON result has it."""
    found: dict[str, Any] = json.loads(document(SessionResult({}, {}, (test,))))["tests"][0]["run"]
    return found


def test_a_load_of_replicas_has_a_line() -> None:
    """How many, how uneven, who is the slowest or much slower, and the number and share of what failed."""
    test = a_result(of("h:1", 104, 0.012), of("h:2", 100, 0.015), of("h:3", 101, 0.0231))
    assert replica_lines([test]) == [
        "replicas of test_a: 3, busiest +2.3 % over the mean, p99 12.0 ms to 23.1 ms (slowest: h:3)"
    ]
    (line,) = replica_lines([a_result(of("h:1"), of("h:2", 95, 0.5, timeout=5), of("h:3", reset=1))])
    assert "much slower than the others: h:2" in line
    assert line.endswith("failed: h:2 5 of 100 (5 %), failed: h:3 1 of 101 (1.0 %)")


def test_what_is_not_known_is_said_so() -> None:
    """No zero stands for it, and null in the JSON of one server."""
    for requests, busiest in ((9, "busiest +0.0 % over the mean"), (0, "nothing was answered")):
        each = [ReplicaResult(name, requests, {}, 1.0, histogram([0.01] * requests)) for name in "ab"]
        assert imbalance_text(each) == f"2, {busiest}, p99 not known"
    assert plain_run(result_of("t.py::test_a", judgement()))["replicas"] is None


def test_the_json_has_each_of_them() -> None:
    """With what it counted, in seconds and requests a second."""
    counters = Counters(items=20, batches=6, parts={"h:1": Counters(16, 4), "h:2": Counters(4, 2)})
    run = plain_run(a_result(of("h:1", 100, 0.01), of("h:2", 50, 0.02, timeout=2), counters=counters))
    assert run["counters"]["parts"]["h:1"]["items"] == 16
    found = run["replicas"]
    assert (round(found["busiest"], 3), found["slowest"], found["much_slower"]) == (0.333, "h:1", [])
    first, second = found["each"]
    assert (first["name"], first["requests"], first["errors"], first["throughput"]) == ("h:1", 100, {}, 200.0)
    assert (first["batching_ratio"], second["batching_ratio"]) == (4.0, 2.0)
    assert round(second["p50"], 3) == 0.02
    assert (second["p99"], second["errors"]) == (None, {"timeout": 2})


def test_the_page_has_a_table_of_them() -> None:
    """A row each; what is not known is said so."""
    text = Page(page_document(SessionResult({}, {}, (a_result(of("h:1"), of("h:2", 50, 0.02, timeout=2)),)))).text
    assert "h:1 200/s 10.0 ms 10.0 ms 0 not known" in text
    assert "h:2 100/s 20.0 ms not known 2 not known" in text
    assert "2, busiest +33.3 % over the mean, p99 10.0 ms to 10.0 ms (slowest: h:1)" in text


def test_a_name_is_text_in_the_page() -> None:
    """Whatever it is, it brings no element of its own."""
    plain = Page(page_document(SessionResult({}, {}, (a_result(*(of(f"h:{n}") for n in range(len(HOSTILE)))),))))
    odd = Page(page_document(SessionResult({}, {}, (a_result(*map(of, HOSTILE)),))))
    assert [tag for tag, _ in odd.elements] == [tag for tag, _ in plain.elements]
