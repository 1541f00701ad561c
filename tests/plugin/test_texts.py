"""Numbers and errors as a user reads them."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from pytest_gpuserve import ms, s, us
from pytest_gpuserve.errors import (
    BaselineUnusable,
    DeviceProblem,
    GpuserveError,
    LoadFailed,
    ServerFailed,
    UsageProblem,
)
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.units import (
    GiB,
    MiB,
    format_bytes,
    format_change,
    format_fraction,
    format_joules,
    format_rate,
    format_ratio,
    format_seconds,
    format_value,
)

TEXTS: dict[Callable[[float], str], dict[float, str]] = {
    format_seconds: {
        0.0: "0 s",
        4.5: "4.50 s",
        -0.0123: "-12.3 ms",
        0.00087: "870 us",
        0.9999: "1.00 s",
        42e-9: "42 ns",
        119.4: "119 s",
        -130.0: "-2 min 10 s",
        math.nan: "nan",
        math.inf: "inf",
    },
    format_joules: {
        12.5: "12.5 J",
        0.043: "43.0 mJ",
        2100.0: "2.10 kJ",
        3e-9: "3e-09 J",
        0.0: "0 J",
        math.nan: "nan J",
    },
    format_bytes: {12.0: "12 B", 1024.0: "1.00 KiB", 850 * MiB: "850 MiB", 13.25 * GiB: "13.2 GiB", math.inf: "inf B"},
    format_rate: {2147.3: "2147/s", 12.345: "12.3/s", 0.0: "0/s", math.inf: "inf/s"},
    format_ratio: {18.416: "18.42"},
    format_fraction: {0.05: "5 %", 0.0126: "1.3 %", 0.0: "0 %", -0.0003: "0.0 %", math.nan: "nan %"},
    format_change: {-0.231: "-23.1 %", 0.05: "+5.0 %", math.nan: "+nan %"},
}


@pytest.mark.parametrize("function", TEXTS)
def test_every_kind_of_number_has_one_way_to_be_written(function: Callable[[float], str]) -> None:
    """A number has the largest unit in which it is at least one, with three digits."""
    assert {value: function(value) for value in TEXTS[function]} == TEXTS[function]


def test_a_value_is_written_in_its_unit() -> None:
    """A number is written in its metric's unit; limits are in seconds, for any unit in the test."""
    texts = {"s": "50.0 ms", "1/s": "0.0500/s", "J": "50.0 mJ", "B": "0.05 B", "": "0.05"}
    assert {unit: format_value(0.05, unit) for unit in texts} == texts
    assert (2 * s, 50 * ms, 7 * us) == pytest.approx((2.0, 0.05, 7e-6))


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
