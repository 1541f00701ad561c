"""The README and the pages: links lead somewhere, snippets are right, and what they name is there."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from cogapp import Cog  # type: ignore[import-untyped]
from markdown_it import MarkdownIt
from markdown_it.token import Token

import pytest_gpuserve
from pytest_gpuserve import plugin
from pytest_gpuserve.verdict.reason import ReasonKind

ROOT = Path(__file__).parents[2]
DOCS = Path(pytest_gpuserve.__file__).parent / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FILES = [
    ROOT / "README.md",
    ROOT / "suites" / "README.md",
    ROOT / "tests" / "README.md",
    ROOT / "tests" / "suites" / "README.md",
    *(ROOT / ".github").glob("*.md"),
    *PAGES,
]

OTHERS = {
    "--fail",
    "--upload-file",
    "--adapter",
    "--file",
    "--columns",
    "--num-cpus",
    "--splits",
    "--group",
    "--quiet",
    "--ours",
}
"""Options of other programs."""


def named(file: Path) -> str:
    """A file as a parameter of a test."""
    return str(file.relative_to(ROOT))


@cache
def tokens_of(file: Path) -> tuple[Token, ...]:
    """Its Markdown, parsed."""
    return tuple(MarkdownIt("commonmark").enable("table").parse(file.read_text(encoding="utf-8")))


def anchors_of(file: Path) -> set[str]:
    """The anchors of its headings, as hosts of code make them."""
    tokens = tokens_of(file)
    titles = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links_of(file: Path) -> list[str]:
    """The targets of its links and pictures."""
    inline = [child for token in tokens_of(file) for child in token.children or ()]
    return [
        str(child.attrGet("href") or child.attrGet("src")) for child in inline if child.type in {"link_open", "image"}
    ]


def fences_of(file: Path, *languages: str) -> list[str]:
    """Its blocks of code in these languages."""
    return [token.content for token in tokens_of(file) if token.type == "fence" and token.info in languages]


@pytest.mark.parametrize("file", FILES, ids=named)
def test_every_link_leads_to_a_file_or_a_heading(file: Path) -> None:
    """Relative links, with their anchors; addresses are of https."""
    for link in links_of(file):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        assert target.exists(), f"{named(file)} links to {link}"
        assert not anchor or anchor in anchors_of(target), f"{link}: {sorted(anchors_of(target))}"


@pytest.mark.parametrize("file", FILES, ids=named)
def test_every_python_snippet_compiles(file: Path) -> None:
    """Each Python snippet compiles as it is."""
    for source in fences_of(file, "python"):
        compile(source, named(file), "exec")


HELPS = """
import runpy, sys
for sys.argv in [[name, "--help"] for name in sys.argv[1:]]:
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        assert not ended.code, sys.argv
"""
"""Prints the help of many programs."""


def test_every_option_that_a_snippet_names_is_there() -> None:
    """Each option in a snippet is one of pytest with the plugin, or of the package's own programs."""
    own = (f"pytest_gpuserve.{name}" for name in ("doctor", "load", "new"))
    argv = [sys.executable, "-Wignore", "-c", HELPS, "pytest", *own, "tests.benchmarks.power"]
    said = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    known = OTHERS.union(re.findall(r"--[a-z][a-z-]+", said))
    for file in FILES:
        texts = fences_of(file, "bash", "sh")
        wanted = {option for text in texts for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}
        assert wanted <= known, named(file)


def test_the_readme_is_read_in_one_go() -> None:
    """8 000 characters at most."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8")) <= 8_000


def test_every_page_is_listed() -> None:
    """The index and ``llms.txt`` list each page."""
    wanted = {page for page in PAGES if page.name != "index.md"}
    listed = {(DOCS / link).resolve() for link in links_of(DOCS / "index.md") if link.endswith(".md")}
    assert wanted <= listed
    text = (DOCS / "llms.txt").read_text(encoding="utf-8")
    assert {(DOCS / link).resolve() for link in re.findall(r"\]\(([^)]+\.md)\)", text)} == {*wanted, DOCS / "index.md"}


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Sphinx builds the site without a warning."""
    argv = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "dirhtml", str(DOCS), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "tutorials" / "first_gate" / "index.html").exists()


def test_pytest_says_where_the_pages_are(pytester: pytest.Pytester) -> None:
    """The folder, and nothing is run."""
    pytester.makepyfile("def test_it(): raise SystemExit(3)")
    result = pytester.runpytest_inprocess("--gpuserve-docs")
    assert (result.ret, result.outlines) == (0, [str(DOCS)])
    assert plugin.DOCS == DOCS


def test_what_is_made_of_the_code_is_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Tables and signatures of the reference; what renews them is said."""
    pages = [str(page) for page in PAGES if "[[[cog" in page.read_text(encoding="utf-8")]
    assert pages
    assert Cog().main(["cog", "--check", "-I", str(ROOT), *pages]) == 0, (
        f"{capsys.readouterr()}\nrenew it: python -m cogapp -r -I . pytest_gpuserve/docs/reference/*.md"
    )


PACKAGE = Path(pytest_gpuserve.__file__).parent
ROOMS = sorted(path.parent for path in PACKAGE.glob("*/__init__.py") if path.parent.name != "trial")
MOST_LINES = 30


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_has_a_readme_of_one_screen_that_names_what_is_there(room: Path) -> None:
    """Modules, links and tests that a room's README names are files; it has at most 30 lines."""
    text = (room / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    modules = re.findall(r"`([\w/]+\.py)`", text)
    missing = [
        name
        for name in modules
        if not ((room / name).is_file() or [*room.rglob(name)] or (PACKAGE.parent / name).is_file())
    ]
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not (room / link).exists()]
    assert (missing, links) == ([], [])


def test_each_kind_of_reason_has_its_anchor() -> None:
    """The page of reasons has a heading for each kind, in the order of the code, and for nothing else."""
    page = (PACKAGE / "docs" / "reference" / "reasons.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (.+)$", page, re.MULTILINE) == [str(kind) for kind in ReasonKind]
