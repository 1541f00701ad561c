"""Errors as a user reads them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

from pytest_gpuserve.errors import (
    BaselineUnusable,
    DeviceProblem,
    GpuserveError,
    LoadFailed,
    ServerFailed,
    UsageProblem,
)
from pytest_gpuserve.measure.points import NotMeasured

FULL: dict[str, Any] = {
    "found": "exit code 3",
    "looked": ["/usr/bin", "/bin"],
    "remedies": ["give it longer with start_timeout=60", "or another port"],
    "log_tail": "first\nlast",
}
"""Everything that an error can say."""


def test_the_text_says_what_was_found_where_and_what_helps() -> None:
    """Each known part has its lines; further lines of what a file or server said cannot pose as our advice."""
    assert str(GpuserveError("the server did not start", **FULL)).splitlines() == [
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


def test_an_error_survives_copying() -> None:
    """Errors survive pickling; only wrong usage and a missing device are usage problems."""
    for kind in (UsageProblem, DeviceProblem, ServerFailed, LoadFailed, BaselineUnusable, NotMeasured):
        assert issubclass(kind, UsageProblem) is (kind in {UsageProblem, DeviceProblem})
        error = kind("the server did not start", **FULL)
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert (type(other), str(other)) == (kind, str(error))
