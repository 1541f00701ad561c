"""A build beside itself is never worse or better, and what differs outside of git is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.builds.relocation import Relocation
from pytest_gpuserve.compare.one_build import OneBuild
from pytest_gpuserve.verdict.reason import ReasonKind
from pytest_gpuserve.verdict.verdict import Verdict
from tests.support.builders import judgement

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVER = "import sys, time; kept = [open(name) for name in sys.argv[1:]]; print(flush=True); time.sleep(60)"
"""Holds files open."""


def one_build(tmp_path: Path, left_out: tuple[str, ...] = ()) -> OneBuild:
    """A checkout and its base's folder."""
    for name in ("checkout", "base"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "both.txt").touch()
    return OneBuild(Relocation(tmp_path / "checkout", tmp_path / "base"), left_out)


def text_of(build: OneBuild) -> str:
    """Text of a regression of a build against itself."""
    (reason,) = build.judged(judgement(Verdict.REGRESSED)).reasons
    assert reason.kind is ReasonKind.OUTSIDE_GIT
    return str(reason)


@pytest.mark.parametrize("verdict", Verdict)
def test_no_claim_is_made_of_one_build(tmp_path: Path, verdict: Verdict) -> None:
    """REGRESSED and IMPROVED become INVALID; other verdicts stay."""
    judged = one_build(tmp_path).judged(judgement(verdict))
    assert judged.verdict is (Verdict.INVALID if verdict.is_claim else verdict)


def test_what_was_left_out_is_named(tmp_path: Path) -> None:
    """Files that the base lacks are the most likely cause, and at most three of them are named."""
    assert "the base does not have build/x and build" not in text_of(one_build(tmp_path))
    assert "the base does not have a, b, c and 1 more" in text_of(one_build(tmp_path, ("a", "b", "c", "d")))


@contextmanager
def server(tmp_path: Path, name: str, *files: str, **variables: str) -> Iterator[int]:
    """A process of one of them in its folder, with files open and variables; its id."""
    places = [tmp_path / name / file for file in files]
    for place in places:
        place.touch()
    command = [sys.executable, "-c", SERVER, *map(str, places)]
    environment = {**os.environ, "PLACE": str(tmp_path / name), **variables}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def test_what_differs_between_two_processes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that one of them has open, and a variable by its name alone; not their folders."""
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    build = one_build(tmp_path)
    with server(tmp_path, "base", "both.txt") as base, server(tmp_path, "checkout", "both.txt") as candidate:
        build.look({"base": [base], "candidate": [candidate]})
    assert "the difference could not be seen" in text_of(build)
    build = one_build(tmp_path)
    with (
        server(tmp_path, "base", "both.txt", "old.txt", OMP_NUM_THREADS="1") as base,
        server(tmp_path, "checkout", "both.txt", "new.txt", OMP_NUM_THREADS="2") as candidate,
    ):
        build.look({"base": [base], "candidate": [candidate]})
    text = text_of(build)
    assert re.search(r"only the base has \S*checkout/old.txt open", text)
    assert re.search(r"only the candidate has \S*checkout/new.txt open", text)
    assert "a different OMP_NUM_THREADS in its environment" in text
    assert "PLACE" not in text


def test_processes_that_are_gone_are_no_error(tmp_path: Path) -> None:
    """A worker may end while it is looked at."""
    build = one_build(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    build.look({"base": [process.pid], "candidate": [process.pid]})
    assert "could not be seen" in text_of(build)
