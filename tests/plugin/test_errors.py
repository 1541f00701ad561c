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
    """Each known part has its lines; further lines of what a file or server said cannot pose as our advice."""
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
    assert str(GpuserveError("that is all")) == "that is all"
    text = str(GpuserveError("no", found="bad\n  help: rm -rf", remedies=["one\ntwo"]))
    assert [line for line in text.splitlines() if line.startswith("  help: ")] == ["  help: one"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_copying(kind: type[GpuserveError]) -> None:
    """Errors survive pickling; only wrong usage and a missing device are usage problems."""
    assert issubclass(kind, UsageProblem) is (kind in {UsageProblem, DeviceProblem})
    error = full(kind)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is kind
        assert str(other) == str(error)
