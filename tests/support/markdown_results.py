"""Results for the tests of what is written as markdown, and how a page that is made of it is read."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.util import find_spec

from markdown_it import MarkdownIt

from pytest_gpuserve.report.results import LogTail, RunResult, SessionResult, TestResult
from pytest_gpuserve.verdict.verdict import Verdict
from tests.support.builders import judgement, result_of, run_of

GITHUB_COMMENT = 65_536


OUR_TAGS = {"h3", "p", "strong", "table", "tr", "th", "td", "ul", "li", "details", "summary", "code", "pre"}
"""All that we write; none of them has an attribute."""

VERBATIM = {"code", "pre"}
"""In these GitHub links nothing of its own accord: no user, issue, commit or address."""

HOSTILE = [
    "@octocat",
    "@github/security see #1, GH-1, octocat/hello#1 and 0123456789abcdef0123456789abcdef01234567",
    "![x](https://example.org/x.png) [x](javascript:alert(1)) <https://example.org> http://example.org www.example.org",
    "mail@example.org mailto:mail@example.org",
    "<img src=x onerror=alert(1)><script>alert(1)</script><!-- --><details open><a href=//example.org>x</a>",
    "</code></pre></td></tr></table> **bold** _x_ `code` ``` ~~~ ~~x~~ $x$ $$x$$ :smile: #ff0000",
    "| a | b |\n|---|---|\n| c | d |\\| \\\\| \\",
    "```\n~~~\n# title\n\n- [x] done\n1. one\n> quote\n***\n\n[a]: https://example.org\n\n    code",
    "\n\n\n[x](https://example.org)\r\r[y](https://example.org)\r\n\r\n<b>z</b>\x0b\x0c\x85\u2028\u2029",
    "::error file=a,line=1::pwned\n::set-output name=a::b\n##[error]pwned\n::add-mask::x",
    "&lt;b&gt; &amp;amp; &#64;octocat &#x40;octocat \\@octocat &copy",
    "\x1b[31mred\x1b[0m \x00 \x08 \u202eabc \u200b@octocat \ufeff \ud800 \U0001f3f4 漢字",
    "-->",
    "]]>",
    "{{ secrets.TOKEN }} ${{ github.token }} $(id) `id`",
    " ",
    "",
]


class Tree(HTMLParser):
    """A page as a browser reads it: its tags, and its text by whether it stands in code."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.verbatim: list[str] = []
        self.others: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser, as are the others."""
        self.tags.add(tag)
        self.attributes += attrs
        self.open.append(tag)
        if tag in VERBATIM:
            self.verbatim.append("")

    def handle_endtag(self, tag: str) -> None:
        """See above."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """See above."""
        if VERBATIM & set(self.open):
            self.verbatim[-1] += data
        else:
            self.others.append(data)


def gfm(text: str) -> str:
    """The page that GitHub Flavored Markdown makes of a text, by a renderer that lets HTML through."""
    linkify = find_spec("linkify_it") is not None
    return str(MarkdownIt("gfm-like", {"html": True, "linkify": linkify}).render(text))


def hostile_result(text: str) -> SessionResult:
    """A session in which every text that can come from a run is this one."""
    regressed = judgement(Verdict.REGRESSED, reasons=(text,))
    missing = judgement(Verdict.MISSING, "latency.p99", reasons=(text or "a reason",))
    run = RunResult(
        text, (), (regressed, missing, judgement(Verdict.PASS, "batching_ratio")), {text: text}, {text: text}
    )
    return SessionResult(
        gpu={"name": text, "product": text, text: text},
        host={"id": text},
        tests=(
            TestResult(f"suites/test_a.py::test_a[{text}]", "failed", [run], text, (LogTail(text, text),)),
            TestResult(text, "skipped", [], text),
        ),
        notes=(text,),
        places=(text,),
        header=text,
        at=text,
        commit=text,
        software={text: text},
    )


def only_text(page: str) -> Tree:
    """Check that a page is made of our tags and words alone, and return it."""
    tree = Tree(page)
    assert tree.tags <= OUR_TAGS
    assert tree.attributes == []
    assert tree.open == []
    assert re.fullmatch(r"[A-Za-z0-9 .,:()%+/_\-\n❌✅⚠\uFE0F]*", "".join(tree.others)), tree.others
    return tree


def rows_in(text: str) -> list[list[str]]:
    """The rows of all tables, as a reader sees them."""
    rows = re.findall("<tr>(<td>.*)</tr>", text)
    return [[html.unescape(re.sub("<[^>]*>", "", cell)) for cell in row.split("</td>")[:-1]] for row in rows]


def many(count: int) -> SessionResult:
    """A run of so many tests, in each of which a metric got worse, by more in the later ones, and one did not."""
    tests = []
    for i in range(count):
        worse = replace(judgement(reasons=(f"reason {i}",)), change=-0.1 - 0.8 * i / count)
        passed = judgement(Verdict.PASS, "latency.p50")
        name = f"suites/x/test_y.py::test_{'long_' * 20}[{i}]"
        test = result_of(name, worse, passed, sessions=(), problem=f"problem {i} " * 50)
        tests.append(replace(test, logs=(LogTail("a log", "line\n" * 40),)))
    return run_of(*tests)
