"""The HTML report as a whole: it loads nothing, runs nothing of the run's, shows what is known, and stays small."""

from __future__ import annotations

import dataclasses
import importlib
import re
import time
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.metric import Metric
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.window import Client
from pytest_gpuserve.report.html import document
from pytest_gpuserve.report.html.measured import LABEL_CHARACTERS, block, fact, one_line, short
from pytest_gpuserve.report.names import with_texts
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.remarks import totals_line
from pytest_gpuserve.report.results import LogTail, RunResult, SessionResult, TestResult
from tests.report.html_results import HOSTILE, session_result
from tests.support.builders import judgement, result_of, session, start, streamed, window
from tests.support.html_page import Page

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_BYTES = 30_000
"""Of a report for each of its tests, all plots included."""

MANY = 50

MOST_TURNS = 3.0 / 20e-9
"""A report of `MANY` tests takes less time than so many turns of an empty loop: 3 s where one takes 20 ns."""

ANY_CHARACTER = st.characters(exclude_categories=())

SECRET = "hunter2secret"

CONTENT_POLICY = "Content-Security-Policy"


def page_of(*tests: TestResult) -> Page:
    """The page of these tests."""
    return Page(document(SessionResult({"name": "cpu"}, {"id": "host-a"}, tests)))


def everywhere(text: str) -> SessionResult:
    """A result in which a text stands wherever a run can put one."""
    result = with_each_text(session_result(1, stored=False), lambda known: f"{known} {text}")
    assert isinstance(result, SessionResult)
    return result


def with_each_text(value: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401 -- whatever a result has
    """A copy of a result in which every text is another; names of ours stay as they are."""
    if isinstance(value, (Enum, Metric)):
        return value
    if isinstance(value, str):
        # An empty text stands for none.
        return change(value) if value else value
    if isinstance(value, (tuple, list)):
        return type(value)(with_each_text(each, change) for each in value)
    if isinstance(value, dict):
        return {
            change(name) if isinstance(name, str) and name not in OURS else name: with_each_text(each, change)
            for name, each in value.items()
        }
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {
            each.name: with_each_text(getattr(value, each.name), change)
            for each in dataclasses.fields(value)
            if each.init and each.name not in FIXED
        }
        return dataclasses.replace(value, **changed)
    return value


OURS = frozenset({"load", "concurrency", "steps", "name"})
"""Keys that the report looks for."""

FIXED = frozenset({"reference_kind", "source", "stages"})
"""Fields of which the values are ours."""


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
    (policy,) = [each["content"] or "" for _, each in page.elements if each.get("http-equiv") == CONTENT_POLICY]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "script" not in {tag for tag, _ in page.elements}
    assert [name for _, attributes in page.elements for name in attributes if name.startswith("on")] == []


def test_the_same_results_make_the_same_file() -> None:
    """Nothing of the moment goes into a report, so that two can be compared."""
    assert document(session_result(2)) == document(session_result(2))


# -- what a run can put into it


def skeleton(page: Page) -> list[tuple[str, tuple[str, ...]]]:
    """Elements with the names of their attributes."""
    return [(tag, tuple(attributes)) for tag, attributes in page.elements]


@cache
def harmless_skeleton(result: Callable[[str], SessionResult]) -> list[tuple[str, tuple[str, ...]]]:
    """That of a result whose texts are what they should be."""
    return skeleton(Page(document(result("harmless"))))


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_text_is_a_text(text: str) -> None:
    """Whatever a test id, label, log, fact, setting or reason holds, the page has the same elements, and shows it."""
    hostile = Page(document(everywhere(text)))
    assert skeleton(hostile) == harmless_skeleton(everywhere)
    visible = one_line(text)
    assert hostile.text.count(visible) >= 20
    hrefs = [attributes["href"] or "" for tag, attributes in hostile.elements if tag == "a"]
    assert hrefs
    assert all(re.fullmatch(r"#test-[0-9]+", href) for href in hrefs)


@settings(max_examples=25)
@given(st.text(ANY_CHARACTER, max_size=40))
def test_any_text_is_a_text(text: str) -> None:
    """No text changes the elements of a page, or keeps it from being written as UTF-8."""
    source = document(small_result(text))
    source.encode()
    assert skeleton(Page(source)) == harmless_skeleton(small_result)


def small_result(text: str) -> SessionResult:
    """A result of one test, that is quickly written, with a text behind each of its own."""
    test = dataclasses.replace(
        result_of("a.py::test_with_a_long_name", judgement(Verdict.PASS, reasons=("slower",))),
        problem="p",
        logs=(LogTail("server", "a line"),),
    )
    plain = SessionResult({"name": "cpu"}, {"id": "host"}, (test,), notes=("note",), header="header", at="now")
    result = with_each_text(plain, lambda known: f"{known}{text}")
    assert isinstance(result, SessionResult)
    return result


def test_no_text_escapes_the_mask() -> None:
    """`with_texts` finds every text of a run that a report shows, also one that is coloured in the middle."""
    result = everywhere(SECRET)
    assert document(result).count(SECRET) > 50
    assert SECRET not in document(with_texts(result, lambda text: text.replace(SECRET, "<masked>")))
    coloured = f"{SECRET[:2]}\x1b[1m{SECRET[2:]}"
    assert with_texts([coloured], lambda text: text.replace(SECRET, "<masked>")) == ["<masked>"]
    counted = {"hf_AbCdEfGh1": 1, "latency.p99": 2, "queue_seconds": 3}
    assert with_texts(counted, lambda _: "<masked>") == {"<masked>": 1, "latency.p99": 2, "queue_seconds": 3}


# -- how its texts are written


@given(st.text(ANY_CHARACTER))
def test_a_line_is_visible(text: str) -> None:
    """Nothing is left that turns lines around, hides itself, or cannot be written as UTF-8."""
    line = one_line(text)
    assert line.isprintable()
    line.encode()


def test_what_cannot_be_seen_is_written_out() -> None:
    """Signs that are not printable stand there as escape sequences; letters of any language stay."""
    shown = {"a\x00b": r"a\x00b", "a\u202eb": r"a\u202eb", "a\ud800b": r"a\ud800b", "a\nb\tc": "a b c"}
    shown["größer 模型"] = "größer 模型"
    assert {text: one_line(text) for text in shown} == shown


def test_lines_of_a_block_stay() -> None:
    """A log keeps its lines and tabs; in a plot there is little room."""
    assert block("a\n\tb\x07") == "a\n\tb\\x07"
    assert len(short("x" * 1000)) == LABEL_CHARACTERS


def test_a_fact_that_is_not_known_is_not_zero() -> None:
    """None is told from 0 and from no."""
    facts = {None: "not known", True: "yes", False: "no", 80.0: "80.0"}
    assert {value: fact(value) for value in facts} == facts
    assert [fact(value) for value in (0, {}, {"a": None})] == ["0", "none", "a: not known"]


# -- what is not known


def test_a_run_of_errors_shows_them() -> None:
    """A test that never measured has its problem and its log in the page; nothing at all is no error."""
    nothing = page_of()
    assert ("Nothing was measured." in nothing.text, nothing.titles) == (True, [])
    failed = TestResult("a.py::t", "error", problem="ServerFailed: no port", logs=(LogTail("001", "Traceback ..."),))
    page = page_of(failed)
    assert "1 error" in page.text
    assert "ServerFailed: no port" in page.text
    assert "Traceback ..." in page.text
    assert page.titles == []


def test_a_run_of_streams_shows_their_times() -> None:
    """And what was sent again; what is not known is left out."""
    told = dataclasses.replace(start(streamed(window())), client=Client(resent=3))
    text = page_of(result_of("t", sessions=(session(told),))).text
    for shown in ("ttft.p99 4.00 ms", "itl.p99 1.00 ms", "tpot.p50 1.00 ms", "output_tokens_per_second 220/s"):
        assert shown in text
    assert "requests sent again 3" in text
    assert "goodput" not in text


def test_what_is_not_known_is_no_number() -> None:
    """A load without an answer, and a judgement without evidence, show neither a 0 nor a point."""
    silent = session(start(window((), items=None, batches=None)))
    page = page_of(result_of("a.py::t", judgement(Verdict.MISSING), judgement(Verdict.INVALID), sessions=(silent,)))
    assert "Changes and how surely they are known" not in page.titles
    assert "Throughput against p99" not in page.titles
    assert "Latency distribution" not in page.titles
    numbers = re.findall(r"(throughput|mean latency|p50|p99|longest|items in a batch) (not known|[0-9.]+)", page.text)
    assert {value for _, value in numbers} == {"not known"}
    assert {name for name, _ in numbers} >= {"throughput", "mean latency", "p50", "longest", "items in a batch"}


def test_a_setting_that_is_not_told_says_so() -> None:
    """Asked and used settings stand beside each other, and what differs is marked."""
    text = Page(document(session_result(1))).text
    assert "max_batch_size 32 16 (differs)" in text
    assert "num left to it not told" in text


# -- what it says


def test_the_gravest_stands_first() -> None:
    """Lines are in the order of all reports, the worst first, and what does not pass has its reasons."""
    page = page_of(
        result_of("a.py::fine", judgement(Verdict.PASS)),
        result_of("a.py::slow", judgement(Verdict.REGRESSED, reasons=("the queue grew",))),
    )
    text = page.text
    assert text.index("REGRESSED throughput slow") < text.index("PASS throughput fine")
    assert "the queue grew" in text


def test_it_says_what_all_came_to_and_what_to_do_next() -> None:
    """The totals and the exact command stand at the top, as on the terminal."""
    result = SessionResult({"name": "cpu"}, {}, (result_of("a.py::slow", judgement()),))
    text = Page(document(result)).text
    assert totals_line(result) in text
    assert next_step(result) in text
    assert "pytest a.py::slow --gpu=cpu" in next_step(result)


def test_a_run_beside_its_base_shows_both() -> None:
    """Numbers and distributions of base and candidate stand beside each other."""
    page = Page(document(session_result(2, stored=False)))
    assert "Measured side by side with HEAD~1." in page.text
    assert "base: HEAD~1 ■ now" in page.text.replace("&#9632;", "■")


def test_several_loads_of_a_test_are_told_apart() -> None:
    """Each load of a test has its label."""
    runs = [RunResult(label, (session(),), (judgement(),), {}, {}, users=8) for label in ("", "warm")]
    text = page_of(TestResult("a.py::t", "failed", runs)).text
    assert "load 1" in text
    assert "load warm" in text


def test_many_tests_make_a_small_file_quickly() -> None:
    r"""50 tests are less than 1.5 MB, made in less than 3 s of a slow machine's time.

    The seconds of a machine, by hand, from the repository's folder::

        python -m timeit -n 1 -r 1 -u sec \
            -s "from pytest_gpuserve.report.html import document" \
            -s "from tests.report.html_results import session_result" \
            -s "result = session_result(50, stored=False)" "document(result)"
    """
    result = session_result(MANY, stored=False)
    begin = time.process_time()
    source = document(result)
    taken = time.process_time() - begin
    assert len(source.encode()) < MOST_BYTES * MANY
    begin = time.process_time()
    for _ in range(1_000_000):
        pass
    turn = (time.process_time() - begin) / 1_000_000
    assert taken / turn < MOST_TURNS


# -- what it needs


def test_without_jinja_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """An absent library is a usage problem that names the extra."""

    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(UsageProblem, match="jinja2") as problem:
        document(session_result(1))
    assert "pip install 'pytest-gpuserve[report]'" in str(problem.value)
