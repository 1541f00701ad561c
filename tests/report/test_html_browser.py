"""The report in a real browser: it draws, by day and by night, on a desk and on a phone, and runs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.report.html.lines import LinePoint, MetricLine
from pytest_gpuserve.report.html.page import document, history_document
from pytest_gpuserve.report.html.text import Texts
from tests.report.chromium import Browser, chromium, find_chromium
from tests.report.html_results import HOSTILE, session_result
from tests.report.test_html import with_texts

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
DRAW_ALL = """
(async () => {
  for (const canvas of document.querySelectorAll('.canvas')) {
    canvas.scrollIntoView();
    for (let turn = 0; !canvas.dataset.drawn && turn < 500; turn += 1) {
      await new Promise((resume) => setTimeout(resume, 20));
    }
  }
  scrollTo(0, 0);
  return [...document.querySelectorAll('.canvas:not([data-drawn])')].map((canvas) => canvas.ariaLabel);
})()
"""
EMPTY_PLOTS = """
[...document.querySelectorAll('.canvas')]
  .filter((canvas) => !canvas.querySelector('.cartesianlayer .trace :is(path, text)'))
  .map((canvas) => canvas.ariaLabel)
"""


TOO_WIDE = """
[...document.querySelectorAll('.canvas .main-svg')]
  .filter((svg) => svg.getBoundingClientRect().right > innerWidth).length
"""


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


def draw_all(browser: Browser, page: Path, *, width: int = DESK, phone: bool = False) -> None:
    """Open a page with all its sections, and look at one plot after the other until each is drawn."""
    browser.look(width=width, phone=phone)
    browser.open(page)
    browser.evaluate(OPEN_ALL)
    assert browser.evaluate(DRAW_ALL) == []


def test_every_plot_is_drawn(browser: Browser, report: Path) -> None:
    """All plots have marks, the console is silent, and nothing but the file itself was asked for."""
    draw_all(browser, report)
    assert browser.evaluate("document.querySelectorAll('.canvas').length") >= TESTS * 3 + 3
    assert browser.evaluate(EMPTY_PLOTS) == []
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith(("blob:", "data:"))] == [report.as_uri()]


def test_a_closed_section_is_not_drawn_until_it_is_opened(browser: Browser, report: Path) -> None:
    """50 tests would else keep a phone busy for a minute."""
    browser.look(width=DESK)
    browser.open(report)
    closed = "document.querySelector('#tests > details:not([open])')"
    browser.wait_for("document.querySelector('#verdicts .canvas').dataset.drawn === 'yes'")
    assert browser.evaluate(f"{closed}.querySelectorAll('[data-drawn]').length") == 0
    browser.evaluate(f"globalThis.opened = {closed}; opened.open = true; opened.scrollIntoView()")
    browser.wait_for("opened.querySelectorAll('[data-drawn]').length > 0")


def test_a_link_opens_the_section_that_it_leads_to(browser: Browser, report: Path) -> None:
    """A row of the table leads to the test's numbers."""
    browser.look(width=DESK)
    browser.open(report)
    browser.evaluate("document.querySelector('.verdicts a[href=\"#test-0\"]').click()")
    browser.wait_for("document.getElementById('test-0').open")


def test_it_follows_the_theme(browser: Browser, report: Path) -> None:
    """By night page and plots are light on dark, also where the theme changes while the page is open."""
    colours = """[
      getComputedStyle(document.body).backgroundColor,
      getComputedStyle(document.querySelector('#verdicts .canvas .xtick text')).fill,
    ]"""
    browser.look(width=DESK)
    browser.open(report)
    browser.wait_for("document.querySelector('#verdicts .canvas').dataset.drawn === 'yes'")
    by_day = browser.evaluate(colours)
    browser.look(width=DESK, dark=True)
    browser.wait_for(f"{colours}[1] !== {by_day[1]!r}")
    by_night = browser.evaluate(colours)
    assert by_day[0] == "rgb(255, 255, 255)"
    assert brightness(by_day[1]) < 0.3
    assert brightness(by_night[0]) < 0.2
    assert brightness(by_night[1]) > 0.7
    assert browser.complaints == []


def brightness(colour: str) -> float:
    """Of ``rgb(1, 2, 3)``, from 0 to 1."""
    parts = colour.removeprefix("rgb(").removesuffix(")").split(",")
    return sum(map(float, parts)) / len(parts) / 255


def test_a_phone_scrolls_one_way_only(browser: Browser, report: Path) -> None:
    """Nothing is wider than the screen, and plots take the width that there is when it is turned."""
    draw_all(browser, report, width=PHONE, phone=True)
    assert browser.evaluate("document.documentElement.scrollWidth") <= PHONE
    assert browser.evaluate(TOO_WIDE) == 0
    width = "document.querySelector('#verdicts .main-svg').getBoundingClientRect().width"
    narrow = browser.evaluate(width)
    browser.look(width=2 * PHONE, phone=True)
    browser.wait_for(f"{width} > {narrow} * 1.5")
    assert browser.complaints == []


def test_hovering_tells_values(browser: Browser, report: Path) -> None:
    """Over the first estimate of the forest plot stand its metric, its values and its interval."""
    browser.look(width=DESK)
    browser.open(report)
    browser.wait_for("document.querySelector('#verdicts .canvas').dataset.drawn === 'yes'")
    mark = """(() => {
      const bar = document.querySelector('#verdicts .canvas .errorbar');
      const box = bar.closest('.trace').querySelector('.points path').getBoundingClientRect();
      return [box.x + box.width / 2, box.y + box.height / 2];
    })()"""
    browser.evaluate("document.querySelector('#verdicts .canvas').scrollIntoView()")
    x, y = browser.evaluate(mark)
    for step in (3, 0):
        browser.ask("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x + step, "y": y})
    browser.wait_for("document.querySelector('#verdicts .hoverlayer').textContent.includes('interval')")
    told = browser.evaluate("document.querySelector('#verdicts .hoverlayer').textContent")
    assert "REGRESSED" in told
    assert "tolerance" in told


def test_nothing_of_the_run_is_run(browser: Browser, tmp_path: Path) -> None:
    """Hostile texts in every place, plots included, are read as texts, and none of them is executed."""
    page = tmp_path / "hostile.html"
    result = with_texts(session_result(2, stored=False), lambda known: f"{' '.join(SHORT)} {known}")
    page.write_text(document(result), encoding="utf-8")
    draw_all(browser, page)
    assert browser.evaluate("typeof globalThis.hacked") == "undefined"
    assert browser.complaints == []
    assert browser.evaluate("document.images.length") == 0
    assert browser.evaluate("document.querySelectorAll('svg a, b:not(svg b)').length") == 0
    told = browser.evaluate("document.body.textContent")
    assert all(Texts(str).line(text) in " ".join(told.split()) for text in SHORT)
    # As a label of a plot, too: cut, and letter for letter.
    labels = browser.evaluate("[...document.querySelectorAll('.canvas text')].map((text) => text.textContent)")
    assert any("</script><script>globalThis.hacked" in label for label in labels)


def test_a_history_is_drawn(browser: Browser, tmp_path: Path) -> None:
    """Its values, levels and change points have marks."""
    points = tuple(LinePoint(f"commit {place}", 5.0 + place % 3 + 4 * (place > 20), 4.0, 12.0) for place in range(40))
    page = tmp_path / "history.html"
    page.write_text(history_document([MetricLine("p99 of t", "s", points, (21,))], "History"), encoding="utf-8")
    draw_all(browser, page)
    assert browser.evaluate(EMPTY_PLOTS) == []
    assert browser.evaluate("document.querySelectorAll('.shapelayer path').length") >= 1
    assert browser.complaints == []
