"""The README and the pages: links, snippets and names are right, and commands say what the tutorials show."""

from __future__ import annotations

import os
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
from tests.support.plain_git import git

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


# -- tutorials, and the script that bisects

TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))

DEADLINE_SECONDS = 400.0

GIT = {f"GIT_{who}_{what}": "x@y.invalid" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def masked(line: str) -> str:
    """A line without numbers, commits, units, widths of columns, and the test's name, which only its first row has."""
    line = re.sub(r"^ test_\w+ ", " ", line)
    line = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,12}\b", "COMMIT", line)
    return " ".join(re.sub(r"[+-]?\d[\d.,]*( [mu]?s\b)?", "N", line).split())


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_command_of_a_tutorial_does_what_it_shows(page: Path, tmp_path: Path) -> None:
    """The commands of a tutorial run in order, with its files, and print each shown line."""
    environment = {**os.environ, **GIT, "COLUMNS": "120", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    said, comment = "", ""
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type == "html_block":
            comment = token.content
        elif token.type == "fence" and token.info == "python":
            name = token.content.splitlines()[0].removeprefix("# ")
            (tmp_path / name).write_text(token.content, encoding="utf-8")
        elif token.type == "fence" and token.info == "bash":
            if "not run" not in comment:
                status, said = run(token.content, tmp_path, environment)
                assert status == ("exit status 1" in comment), said
            comment = ""
        elif token.type == "fence" and token.info == "text":
            files = "\n".join(file.read_text(encoding="utf-8") for file in tmp_path.glob("suites/*/*.py"))
            printed = {masked(line) for line in f"{said}\n{files}".splitlines()}
            assert {masked(line) for line in token.content.splitlines()} <= printed, said


def run(commands: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run a block; returns its exit status and what it printed."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout


PYTEST = """
import json, sys
from pathlib import Path
(file,) = (argument.partition("=")[2] for argument in sys.argv if argument.startswith("--gpuserve-json="))
verdict = Path("verdict").read_text()
Path(file).write_text(json.dumps({"tests": [{"verdicts": [{"verdict": verdict}]}]}))
sys.exit(verdict not in ("PASS", "MISSING"))
"""
"""Stands for the measurement: the verdict of a commit is what its file says."""


def test_the_first_slow_commit_is_found_beside_some_that_cannot_be_told(tmp_path: Path) -> None:
    """REGRESSED is bad, PASS is good; INVALID and INCONCLUSIVE, which fail, and MISSING, which may not, are skipped."""
    script = (DOCS / "how-to" / "read_a_run.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    (tmp_path / "slower.py").write_text(script, encoding="utf-8")
    fake = tmp_path / "modules" / "pytest.py"
    fake.parent.mkdir()
    fake.write_text(PYTEST, encoding="utf-8")
    project = tmp_path / "project"
    project.mkdir()
    git(project, "init", "-q")
    commits = []
    for verdict in ("PASS", "INVALID", "PASS", "REGRESSED", "INCONCLUSIVE", "REGRESSED", "MISSING", "REGRESSED"):
        (project / "verdict").write_text(verdict, encoding="utf-8")
        git(project, "add", "verdict")
        git(project, "commit", "-q", "--allow-empty", "-m", verdict)
        commits.append(git(project, "rev-parse", "HEAD").strip())
    git(project, "bisect", "start", commits[-1], commits[0])
    environment = {**os.environ, "PYTHONPATH": str(fake.parent), "TMPDIR": str(tmp_path)}
    slower = [sys.executable, "../slower.py", commits[0], "suites/test_it.py::test_it"]
    argv = ["git", "bisect", "run", *slower]
    done = subprocess.run(argv, cwd=project, env=environment, capture_output=True, text=True, check=False)
    statuses = {"PASS": 0, "IMPROVED": 0, "REGRESSED": 1, "INVALID": 125, "INCONCLUSIVE": 125, "MISSING": 125}
    for verdict, status in statuses.items():
        (project / "verdict").write_text(verdict, encoding="utf-8")
        assert subprocess.run(slower, cwd=project, env=environment, check=False).returncode == status
    assert f"{commits[3]} is the first bad commit" in done.stdout, done.stdout + done.stderr
