"""The HTML report: it loads and runs nothing, shows the known facts, and stays small."""

from __future__ import annotations

import dataclasses
import sys
from xml.etree import ElementTree as ET

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.report.html import MOST_BYTES, document, plots_of
from pytest_gpuserve.report.names import with_texts
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.results import LogTail, RunResult, SessionResult, TestResult
from pytest_gpuserve.report.terminal import totals_line
from pytest_gpuserve.verdict.verdict import Verdict
from tests.report.html_results import Page, session_result
from tests.support.builders import judgement, result_of, session, start, window
from tests.support.markdown_results import HOSTILE, hostile_result

SECRET = "Hunter2Secret"


def page_of(*tests: TestResult) -> Page:
    """The page of these tests."""
    return Page(document(SessionResult({"name": "cpu"}, {"id": "host-a"}, tests)))


# -- it stands alone


def test_nothing_is_loaded_or_run() -> None:
    """No element or style names anything outside of the page; it has no script and no handler, and its policy none."""
    page = Page(document(session_result(3)))
    named = [
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name in {"src", "href", "srcset", "action", "data", "poster", "formaction", "background", "xlink:href"}
    ]
    assert named
    assert all(value is not None and value.startswith("#") for value in named)
    assert not [style for style in page.styles if "url(" in style or "@import" in style]
    policies = [
        each["content"] or "" for _, each in page.elements if each.get("http-equiv") == "Content-Security-Policy"
    ]
    assert ["default-src 'none'" in policy and "script-src" not in policy for policy in policies] == [True]
    assert "script" not in {tag for tag, _ in page.elements}
    assert [name for _, attributes in page.elements for name in attributes if name.startswith("on")] == []


def test_a_page_of_many_tests_is_small() -> None:
    """25 tests have all their plots; of 400 what is least bad is left out, and the page says so."""
    text = document(session_result(25))
    assert len(text.encode()) < MOST_BYTES
    assert text.count("<svg") == 25
    many = document(session_result(400))
    assert MOST_BYTES / 2 < len(many.encode()) < MOST_BYTES
    assert "More tests do not fit here: --gpuserve-json has them." in many
    assert many.index(">REGRESSED<") < many.index(">PASS<")


# -- what a run can put into it


def skeleton(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """The elements of a page, with the names of their attributes."""
    return [(tag, tuple(attributes)) for tag, attributes in Page(document(hostile_result(f"a{text}"))).elements]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_text_is_a_text(text: str) -> None:
    """For any test id, label, log, fact or reason the page has the same elements, and no hidden characters."""
    assert skeleton(text) == skeleton("harmless")
    source = document(hostile_result(text))
    source.encode()
    assert all(sign.isprintable() or sign in "\n\t" for sign in source)


def test_no_text_escapes_the_mask() -> None:
    """`with_texts` finds every text of a run that a report shows, also one that is coloured in the middle."""
    result = hostile_result(SECRET)
    assert document(result).count(SECRET) > 10
    assert SECRET not in document(with_texts(result, lambda text: text.replace(SECRET, "<masked>")))
    coloured = f"{SECRET[:2]}\x1b[1m{SECRET[2:]}"
    assert with_texts([coloured], lambda text: text.replace(SECRET, "<masked>")) == ["<masked>"]
    counted = {"hf_AbCdEfGh1": 1, "latency.p99": 2, "queue_seconds": 3}
    assert with_texts(counted, lambda _: "<masked>") == {"<masked>": 1, "latency.p99": 2, "queue_seconds": 3}


# -- what it says


def test_it_says_what_all_came_to_and_what_to_do_next() -> None:
    """The totals and the exact command are at the top, as on the terminal; an empty run is fine."""
    result = SessionResult({"name": "cpu"}, {}, (result_of("a.py::slow", judgement()),))
    text = Page(document(result)).text
    assert totals_line(result) in text
    assert next_step(result) in text
    assert "pytest a.py::slow --gpu=cpu" in next_step(result)
    assert "Nothing was measured." in page_of().text


def test_a_test_that_failed_says_why() -> None:
    """Its problem, what went wrong in its sessions, whom it was measured beside, and the end of its server's log."""
    run = RunResult("warm", (session(problems=("it died",)),), (), {}, {}, base="HEAD~1")
    test = TestResult("a.py::t", "error", [run], "ServerFailed: no port", (LogTail("001", "first\nlast"),))
    text = page_of(test).text
    for told in ("error t", "a.py::t", "ServerFailed: no port", "load warm", "it died", "side by side with HEAD~1"):
        assert told in text
    assert "end of the log 001 first last" in text
    assert "end of the log" not in page_of(dataclasses.replace(test, outcome="passed")).text


def test_what_is_not_known_says_so() -> None:
    """A judgement without evidence and an unknown fact have no number; None differs from "no"."""
    result = SessionResult({"mig_profile": None, "ecc": False}, {}, (result_of("t", judgement(Verdict.MISSING)),))
    text = Page(document(result)).text
    assert "MISSING throughput t - - - - -" in text
    assert "ecc: no" in text
    assert "mig" not in text
    assert "commit not known" in text


# -- its plots


def drawn(run: RunResult) -> ET.Element:
    """The plots of a load."""
    return ET.fromstring(plots_of(run))


def words(svg: ET.Element) -> set[str]:
    """The texts of plots."""
    return {"".join(each.itertext()) for each in svg.iter("{http://www.w3.org/2000/svg}text")}


def test_rounds_and_latencies_of_both_sides_are_drawn() -> None:
    """The plots show the metric that did not pass, with its unit, and name the base or the reference."""
    slow = judgement(metric="latency.p50")
    alone = RunResult("", (session(),), (judgement(Verdict.PASS), slow), {}, {})
    axes = {"latency.p50 (ms)", "start of the server", "latency (ms)", "requests that took longer", "1 %", "0.01 %"}
    assert words(drawn(alone)) >= {*axes, "now", "reference", "1"}
    beside = dataclasses.replace(alone, base="main", base_sessions=(session(),), candidate_sessions=(session(),))
    assert words(drawn(beside)) >= {*axes, "now", "base"}
    assert "reference" not in words(drawn(beside))


def test_what_was_settled_side_by_side_shows_the_rounds_that_decided() -> None:
    """Not what was measured alone before."""
    run = RunResult("", (session(),), (), {}, {})
    unanswered = session(start(window((), items=None, batches=None)))
    assert (plots_of(run) != "", plots_of(dataclasses.replace(run, candidate_sessions=(unanswered,)))) == (True, "")


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A usage error with the command, no traceback; a page without a plot needs none."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageProblem, match=r"pip install 'pytest-gpuserve\[report\]'"):
        document(session_result(1))
    assert document(hostile_result("x"))
