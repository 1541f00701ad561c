"""A build beside itself is never worse or better, and what differs outside of git is named."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.builds.relocation import Relocation
from pytest_gpuserve.compare.one_build import OneBuild
from pytest_gpuserve.verdict.reason import ReasonKind
from pytest_gpuserve.verdict.verdict import Verdict
from tests.support.builders import judgement

if TYPE_CHECKING:
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


@pytest.mark.parametrize(
    ("base", "candidate", "words"),
    [
        (([], {}), ([], {}), ["the difference could not be seen"]),
        ((["base/both.txt"], {"X": "{base}/a"}), (["checkout/both.txt"], {"X": "{checkout}/a"}), ["could not be seen"]),
        (([], {}), (["checkout/own.txt"], {}), ["only the candidate has", "checkout/own.txt open"]),
        ((["base/own.txt"], {}), ([], {}), ["only the base has", "checkout/own.txt open"]),
        (
            ([], {"OMP_NUM_THREADS": "1"}),
            ([], {"OMP_NUM_THREADS": "2"}),
            ["a different OMP_NUM_THREADS in its environment"],
        ),
    ],
)
def test_what_differs_between_two_processes_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    base: tuple[list[str], dict[str, str]],
    candidate: tuple[list[str], dict[str, str]],
    words: list[str],
) -> None:
    """A file that one of them has open, and a variable by its name alone; not their folders."""
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    build = one_build(tmp_path)
    with ExitStack() as stack:
        pids = []
        for name, (files, variables) in (("base", base), ("candidate", candidate)):
            places = [tmp_path / file for file in files]
            for place in places:
                place.touch()
            folders = {each: str(tmp_path / each) for each in ("base", "checkout")}
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", SERVER, *map(str, places), *([] if places else [os.devnull])],
                    env={**os.environ, **{key: value.format(**folders) for key, value in variables.items()}},
                    stdout=subprocess.PIPE,
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline(), name
            pids.append(process.pid)
        build.look({"base": [pids[0]], "candidate": [pids[1]]})
    assert all(word in text_of(build) for word in words)


def test_processes_that_are_gone_are_no_error(tmp_path: Path) -> None:
    """A worker may end while it is looked at."""
    build = one_build(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    build.look({"base": [process.pid], "candidate": [process.pid]})
    assert "could not be seen" in text_of(build)
