"""The report in a real browser: it draws, by day and by night, on a desk and on a phone, and runs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.report.html import document, history_document
from pytest_gpuserve.report.html.history import LinePoint, MetricLine
from pytest_gpuserve.report.html.measured import one_line
from tests.report.chromium import Browser, chromium, find_chromium
from tests.report.html_results import HOSTILE, session_result
from tests.report.test_html import with_each_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium: apt-get install chromium")

TESTS = 3

DESK = 1200
PHONE = 390
"""CSS pixels."""

SHORT = HOSTILE[:-1]
"""Without the one that is long, which only takes time to be laid out."""

OPEN_ALL = "document.querySelectorAll('details').forEach((section) => { section.open = true; })"
EMPTY_PLOTS = """
[...document.querySelectorAll('.panel')]
  .filter((panel) => ![...panel.querySelectorAll('circle, rect, path, polyline')]
    .some((mark) => mark.getBoundingClientRect().width + mark.getBoundingClientRect().height > 0))
  .map((panel) => panel.ariaLabel)
"""
TOO_WIDE = """
[...document.querySelectorAll('.panel, .panel text')]
  .filter((part) => part.getBoundingClientRect().right > innerWidth + 1 || part.getBoundingClientRect().left < -1)
  .map((part) => part.textContent)
"""
OVERLAPPING = """
[...document.querySelectorAll('.panel .along, .panel .up')].flatMap((axis) => {
  const boxes = [...axis.querySelectorAll('text')].map((text) => text.getBoundingClientRect());
  return boxes.filter((box, place) => boxes.some((other, each) => each > place
    && box.left < other.right && other.left < box.right && box.top < other.bottom && other.top < box.bottom));
}).length
"""
FAINT = r"""
(() => {
  const channels = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).map(Number);
  const luminance = (colour) => {
    const [red, green, blue] = channels(colour).map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (element) => {
    const colour = getComputedStyle(element).backgroundColor;
    return /, 0\)$/.test(colour) ? behind(element.parentElement) : colour;
  };
  const faint = (element, ink, least) => {
    const both = [luminance(ink), luminance(behind(element))].sort((a, b) => b - a);
    return (both[0] + 0.05) / (both[1] + 0.05) < least;
  };
  const texts = [...document.querySelectorAll('body *')].filter((element) =>
    element.namespaceURI.endsWith('xhtml') && !element.closest('.aside, .legend b') &&
    [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  const marks = [...document.querySelectorAll('.panel g[fill]')];
  return [
    ...texts.filter((text) => faint(text, getComputedStyle(text).color, 4.5)).map((text) => text.outerHTML),
    ...[...document.querySelectorAll('.panel text')]
      .filter((text) => faint(text.closest('figure'), getComputedStyle(text).fill, 4.5)).map((text) => text.outerHTML),
    ...marks.filter((mark) => faint(mark.closest('figure'), getComputedStyle(mark).fill, 2.8))
      .map((mark) => mark.getAttribute('fill')),
  ];
})()
"""
"""Texts below a contrast of 4.5, and marks below one of about 3 (WCAG 2.2, 1.4.3 and 1.4.11)."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for all tests of this module."""
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of some tests, measured side by side."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(document(session_result(TESTS, stored=False)), encoding="utf-8")
    return path


def open_all(browser: Browser, page: Path, *, width: int = DESK, phone: bool = False, dark: bool = False) -> None:
    """Open a page with all its sections."""
    browser.look(width=width, phone=phone, dark=dark)
    browser.open(page)
    browser.evaluate(OPEN_ALL)


def test_every_plot_is_drawn(browser: Browser, report: Path) -> None:
    """All plots have marks, the console is silent, and nothing but the file itself was asked for."""
    open_all(browser, report)
    assert browser.evaluate("document.querySelectorAll('figure').length") >= TESTS * 3 + 3
    assert browser.evaluate(EMPTY_PLOTS) == []
    assert browser.evaluate(OVERLAPPING) == 0
    assert browser.complaints == []
    assert browser.requests == [report.as_uri()]


def test_a_link_opens_the_section_that_it_leads_to(browser: Browser, report: Path) -> None:
    """A row of the table leads to the test's numbers, also by the keyboard, which reaches links and sections alone."""
    browser.look(width=DESK)
    browser.open(report)
    browser.evaluate("document.querySelector('.verdicts a[href=\"#test-0\"]').focus()")
    for kind in ("keyDown", "char", "keyUp"):
        browser.ask(
            "Input.dispatchKeyEvent",
            {"type": kind, "key": "Enter", "code": "Enter", "text": "\r", "windowsVirtualKeyCode": 13},
        )
    browser.wait_for("document.getElementById('test-0').closest('details').open")
    browser.wait_for("document.getElementById('test-0').getBoundingClientRect().top < innerHeight")


@pytest.mark.parametrize("dark", [False, True], ids=["day", "night"])
def test_everything_can_be_read(browser: Browser, report: Path, *, dark: bool) -> None:
    """Texts and marks stand out against what is behind them, by day and by night."""
    open_all(browser, report, dark=dark)
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (brightness(background) < 0.2) is dark
    assert browser.evaluate(FAINT) == []


def brightness(colour: str) -> float:
    """Of ``rgb(1, 2, 3)``, from 0 to 1."""
    parts = colour.removeprefix("rgb(").removesuffix(")").split(",")
    return sum(map(float, parts)) / len(parts) / 255


def test_a_phone_scrolls_one_way_only(browser: Browser, report: Path) -> None:
    """Nothing is wider than the screen, no name of an axis covers another, and plots take the width that there is."""
    open_all(browser, report, width=PHONE, phone=True)
    assert browser.evaluate("document.documentElement.scrollWidth") <= PHONE
    assert browser.evaluate(TOO_WIDE) == []
    assert browser.evaluate(OVERLAPPING) == 0
    width = "document.querySelector('#verdicts .panel').getBoundingClientRect().width"
    narrow = browser.evaluate(width)
    browser.look(width=2 * PHONE, phone=True)
    browser.wait_for(f"{width} > {narrow} * 1.5")
    assert browser.complaints == []


def test_nothing_of_the_run_is_run(browser: Browser, tmp_path: Path) -> None:
    """Hostile texts in every place, plots included, are read as texts, and none of them is executed."""
    page = tmp_path / "hostile.html"
    result = with_each_text(session_result(2, stored=False), lambda known: f"{' '.join(SHORT)} {known}")
    page.write_text(document(result), encoding="utf-8")
    open_all(browser, page)
    assert browser.evaluate("typeof globalThis.hacked") == "undefined"
    assert browser.complaints == []
    assert browser.evaluate("document.images.length") == 0
    assert browser.evaluate("document.querySelectorAll('svg a, b:not(.legend b), script').length") == 0
    told = browser.evaluate("document.body.textContent")
    assert all(one_line(text) in " ".join(told.split()) for text in SHORT)


def test_a_history_is_drawn(browser: Browser, tmp_path: Path) -> None:
    """Its values, levels and change points have marks."""
    points = tuple(LinePoint(f"commit {place}", 5.0 + place % 3 + 4 * (place > 20), 4.0, 12.0) for place in range(40))
    page = tmp_path / "history.html"
    page.write_text(history_document([MetricLine("p99 of t", "s", points, (21,))], "History"), encoding="utf-8")
    open_all(browser, page, width=PHONE)
    assert browser.evaluate(EMPTY_PLOTS) == []
    assert browser.evaluate(OVERLAPPING) == 0
    assert browser.evaluate("document.querySelectorAll('.rule').length") == 1
    assert browser.complaints == []
