"""Errors as a user reads them."""

from __future__ import annotations

import copy
import pickle

import pytest

from pytest_gpuserve.errors import (
    BaselineUnusable,
    DeviceProblem,
    GpuserveError,
    LoadFailed,
    ServerFailed,
    UsageProblem,
)
from pytest_gpuserve.measure.points import NotMeasured

KINDS = [UsageProblem, DeviceProblem, ServerFailed, LoadFailed, BaselineUnusable, NotMeasured]


def full(kind: type[GpuserveError] = GpuserveError) -> GpuserveError:
    """An error with everything that an error can say."""
    return kind(
        "the server did not start",
        found="exit code 3",
        looked=["/usr/bin", "/bin"],
        remedies=["give it longer with start_timeout=60", "or another port"],
        log_tail="first\nlast",
    )


def test_the_text_says_what_was_found_where_and_what_helps() -> None:
    """Each part has its line, the log's last lines stand apart."""
    assert str(full()).splitlines() == [
        "the server did not start",
        "  found: exit code 3",
        "  looked at: /usr/bin, /bin",
        "  help: give it longer with start_timeout=60",
        "  help: or another port",
        "  last lines of its log:",
        "    | first",
        "    | last",
    ]


def test_what_is_not_known_is_not_shown() -> None:
    """An error of one sentence is one line."""
    assert str(GpuserveError("that is all")) == "that is all"


def test_a_finding_of_several_lines_stays_one_finding() -> None:
    """Further lines are indented, so that what a file or a server said cannot pose as our advice."""
    text = str(GpuserveError("no", found="bad\n  help: rm -rf", remedies=["one\ntwo"]))
    assert [line for line in text.splitlines() if line.startswith("  help: ")] == ["  help: one"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_one_of_ours(kind: type[GpuserveError]) -> None:
    """Whoever catches the base catches all, and only wrong usage and a missing device are usage problems."""
    assert issubclass(kind, GpuserveError)
    assert issubclass(kind, UsageProblem) is (kind in {UsageProblem, DeviceProblem})


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_copying(kind: type[GpuserveError]) -> None:
    """Nothing of an error is lost on the way through another process or a copy."""
    error = full(kind)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is kind
        assert str(other) == str(error)
