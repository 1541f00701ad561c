"""The tutorials: each command is run in an empty folder, and says what the page shows, but for its numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import pytest_gpuserve

TUTORIALS = sorted((Path(pytest_gpuserve.__file__).parent / "docs" / "tutorials").glob("*.md"))

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
