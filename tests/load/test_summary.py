"""The summary says what was measured, and invents nothing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.load.schedule import Burst, Closed, Constant, Poisson, Schedule
from pytest_gpuserve.load.summary import summary_json, summary_text
from pytest_gpuserve.load.totals import Totals
from tests.load.ticks import taken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.load.durations import Durations

MS = 1_000_000
CLOSED = Closed(4)
REASON = Reason(ReasonKind.CLIENT_LATE, "client late: by much")
UNKNOWN_TIMES = dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max"))


def durations(values_ns: Sequence[int]) -> Durations:
    """These, added up."""
    return taken(values_ns)


def measured(values_ns: Sequence[int]) -> Totals:
    """Two seconds of these latencies."""
    return Totals(
        nanoseconds=2_000 * MS,
        requests=len(values_ns),
        latency=durations(values_ns),
        due=len(values_ns),
        sent=len(values_ns),
        cpu_ns=20 * MS,
        bytes_received=3 * len(values_ns),
    )


STEPPED = measured([number * MS for number in range(1, 101)])
"""100 requests of 1, 2 ... 100 ms."""

OPENED = replace(
    STEPPED,
    service=durations([MS] * 100),
    lag=durations([50_000] * 99 + [70_000]),
    due=110,
    held=7,
    errors={"reset": 1, "status 503": 9},
    error_samples={"status 503": "503 Busy\n\x1b[2J"},
)
STREAMED = replace(
    STEPPED,
    ttft=durations([5 * MS] * 100),
    itl=durations([2 * MS] * 1900),
    tpot=durations([3 * MS] * 100),
    chunks=2000,
    with_usage=100,
)
CHUNKED = replace(STREAMED, with_usage=99, itl=durations([2 * MS] * 950 + [0] * 50), resent=3)
"""Chunks of which each twentieth came with the one before it."""


def text(totals: Totals, schedule: Schedule = CLOSED, *, processes: int = 1, reasons: Sequence[Reason] = ()) -> str:
    """The summary for people."""
    return summary_text(totals, schedule=schedule, processes=processes, reasons=reasons)


def plain(totals: Totals, schedule: Schedule = CLOSED, *, reasons: Sequence[Reason] = ()) -> dict[str, object]:
    """The summary for JSON, by way of JSON, in which NaN has no place."""
    values = summary_json(totals, schedule=schedule, processes=2, reasons=reasons)
    read = json.loads(json.dumps(values, allow_nan=False))
    assert isinstance(read, dict)
    assert read == values
    return read


def bars(shown: str) -> list[int]:
    """The counts of the histogram's lines."""
    return [int(count) for count in re.findall(r"^ +\S+ \S+ \[(\d+)\] +\|■*$", shown, re.MULTILINE)]


def test_a_closed_loop_reads_like_hey() -> None:
    """The same sections in the same order, with the numbers of the measurement."""
    assert text(STEPPED) == (
        """\
Summary:
  Total:         2.00 s
  Slowest:       100 ms
  Fastest:       1.00 ms
  Average:       50.5 ms
  Requests/sec:  50.0000
  Total data:    300 bytes
  Size/request:  3 bytes

Response time histogram:
  1.00 ms [1]  |■■■■
  10.9 ms [9]  |■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■
  20.8 ms [10] |■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■
  30.7 ms [10] |■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■
  40.6 ms [10] |■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■
  50.5 ms [10] |■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■
  60.4 ms [10] |■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■
  70.3 ms [10] |■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■
  80.2 ms [10] |■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■
  90.1 ms [10] |■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■
   100 ms [10] |■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■

Latency distribution:
  10 % in 10.0 ms
  25 % in 25.0 ms
  50 % in 50.0 ms
  75 % in 75.0 ms
  90 % in 90.0 ms
  95 % in 95.0 ms
  99 % in 99.0 ms

Answers:
  [good]  100

Client:
  CPU:  200 us a request, 1 % of a core

VALID"""
    )


@pytest.mark.parametrize(
    ("shown", "lines"),
    [
        pytest.param(
            text(OPENED, Poisson(50.0), processes=2),
            [
                "  Service time:  mean 1.00 ms, p50 1.00 ms, p99 1.00 ms, max 1.00 ms\n",
                "  Send lag:      mean 50.2 us, p50 50.0 us, p99 50.0 us, max 70.0 us\n",
                "  Sent:          100 of 110 due (90.9 %), 7 after waiting for max_in_flight\n",
                # The most frequent first, each with its first sight, which cannot write on the terminal.
                "Answers:\n  [good]  100\n  [status 503]  9, the first: 503 Busy \\x1b[2J\n  [reset]  1\n",
                # The share is of one core each; the CPU of a request is that of all of them, good and failed.
                "CPU:  182 us a request, 0.5 % of a core for each of 2 processes\n",
            ],
            id="open loop",
        ),
        pytest.param(
            text(STREAMED),
            [
                "  First token:     mean 5.00 ms, p50 5.00 ms, p99 5.00 ms, max 5.00 ms\n",
                "  Between chunks:  mean 2.00 ms, p50 2.00 ms, p99 2.00 ms, max 2.00 ms\n",
                "  Tokens:          2000, 1000/s\n",
            ],
            id="streams",
        ),
        pytest.param(
            text(CHUNKED),
            [
                "  Between chunks:  mean 1.90 ms, p50 2.00 ms, p99 -, max 2.00 ms\n",
                "  In one read:     5 % of these gaps, which blur the quantiles shown as -\n",
                "  Chunks:          2000, 1000/s (99 of 100 answers say how many tokens they have)\n",
                "\n  3 requests were sent again, on new connections: the server closed connections that",
            ],
            id="chunks",
        ),
        # Without answers no time, no bar and no quantile is made up.
        pytest.param(
            text(
                Totals(errors={"refused": 4}),
                Burst(4),
                reasons=[REASON, Reason(ReasonKind.RATE_NOT_REACHED, "too slow")],
            ),
            [
                "Slowest:       -\n",
                "Requests/sec:  -\n",
                "CPU:  0 s a request, - of a core\n",
                "Send lag:      mean -, p50 -, p99 -, max -\n",
                "\n\nINVALID:\n  client late: by much\n  too slow",
            ],
            id="nothing, and invalid",
        ),
    ],
)
def test_what_was_measured_has_its_lines(shown: str, lines: list[str]) -> None:
    """Other loads have none of them."""
    closed = text(STEPPED)
    for line in lines:
        assert line in shown
        assert line not in closed
    if "Slowest:       -" in shown:
        assert not re.search("histogram|distribution|nan", shown.lower())
        assert shown.endswith(lines[-1])


@pytest.mark.parametrize(
    ("requests", "lines"),
    [
        (99, ["95 % in 5.00 ms", "99 % in - (known from 100 requests on)", ""]),
        (999, ["99 % in 5.00 ms", ""]),
        (1000, ["99 % in 5.00 ms", "99.9 % in 5.00 ms", ""]),
    ],
)
def test_a_quantile_of_too_few_requests_is_not_shown(requests: int, lines: list[str]) -> None:
    """A p99 of 99 requests is their maximum; a p99.9 is left out where it is not known."""
    assert "".join(f"  {line}\n" if line else "\n" for line in lines) in text(measured([5 * MS] * requests))


@settings(deadline=None, max_examples=50)  # a busy machine may stall any example
@given(values=st.lists(st.integers(1, 10**11), min_size=1, max_size=50))
@example(values=[5 * MS] * 100_000 + [9 * MS])
def test_every_request_is_in_the_histogram(values: list[int]) -> None:
    """Eleven lines hold all requests, the first and the last at least one each; the longest bar is as long as hey's."""
    shown = text(measured(values))
    counts = bars(shown)
    assert len(counts) == 11
    assert sum(counts) == len(values)
    assert counts[0] >= 1
    assert counts[-1] >= 1 or len(values) == 1 or min(values) * 1.002 > max(values)
    assert max(line.count("■") for line in shown.splitlines()) == 40


JSON_KEYS = """
requests errors answers_checked seconds throughput latency service send_lag_p50 send_lag_p99 cpu_seconds client_ceiling
valid reasons schedule processes error_kinds ttft itl tpot output_tokens_per_second resent tokens_from_usage
"""


def test_json_has_the_agreed_keys() -> None:
    """Names and units as documented; a closed loop has no service time, and no lag where none was counted."""
    values = plain(STEPPED)
    assert list(values) == JSON_KEYS.split()
    assert (values["requests"], values["errors"], values["seconds"], values["throughput"]) == (100, 0, 2.0, 50.0)
    assert values["latency"] == pytest.approx(
        {"mean": 0.0505, "p50": 0.05, "p90": 0.09, "p95": 0.095, "p99": 0.099, "max": 0.1}, rel=0.0005
    )
    assert (values["cpu_seconds"], values["processes"]) == (0.02, 2)
    assert (values["valid"], values["reasons"]) == (True, [])
    assert values["schedule"] == {"load": "closed loop", "concurrency": "4"}
    unknown = ("service", "send_lag_p50", "send_lag_p99", "ttft", "itl", "tpot", "output_tokens_per_second")
    assert [values[name] for name in unknown] == [None] * len(unknown)


def test_json_of_an_open_loop_of_streams_and_of_nothing() -> None:
    """Times in seconds; what is not known is null, never 0 and never NaN."""
    values = plain(OPENED, Constant(50.0), reasons=[REASON])
    assert values["service"] == pytest.approx(dict.fromkeys(UNKNOWN_TIMES, 0.001), rel=0.0005)
    assert (values["send_lag_p50"], values["send_lag_p99"]) == pytest.approx((50e-6, 50e-6), rel=0.0005)
    assert (values["errors"], values["error_kinds"]) == (10, {"reset": 1, "status 503": 9})
    assert (values["valid"], values["reasons"]) == (False, ["client late: by much"])
    assert values["schedule"] == {"load": "open loop, constant", "rate": "50"}
    values = plain(STREAMED)
    assert values["ttft"] == pytest.approx(dict.fromkeys(UNKNOWN_TIMES, 0.005), rel=0.0005)
    assert values["itl"] == pytest.approx(dict.fromkeys(UNKNOWN_TIMES, 0.002), rel=0.0005)
    assert values["tpot"] == pytest.approx(dict.fromkeys(UNKNOWN_TIMES, 0.003), rel=0.0005)
    assert (values["output_tokens_per_second"], values["tokens_from_usage"], values["resent"]) == (1000, True, 0)
    values = plain(CHUNKED)
    assert (values["output_tokens_per_second"], values["tokens_from_usage"], values["resent"]) == (None, False, 3)
    gaps = values["itl"]
    assert isinstance(gaps, dict)
    assert [gaps[name] for name in ("mean", "p50", "max")] == pytest.approx([0.0019, 0.002, 0.002], rel=0.0005)
    assert [gaps[name] for name in ("p90", "p95", "p99")] == [None] * 3
    values = plain(Totals(), Poisson(5.0), reasons=[REASON])
    assert (values["requests"], values["throughput"], values["send_lag_p99"]) == (0, None, None)
    assert values["latency"] == values["service"] == UNKNOWN_TIMES


@pytest.mark.parametrize(
    ("requests", "known"), [(1, set()), (9, {"p50"}), (10, {"p50", "p90"}), (99, {"p50", "p90", "p95"})]
)
def test_json_quantiles_of_too_few_requests_are_null(requests: int, known: set[str]) -> None:
    """Mean and maximum are exact of any number; a quantile is known once a request lies above it."""
    latency = plain(measured([5 * MS] * requests))["latency"]
    assert isinstance(latency, dict)
    assert {name for name, value in latency.items() if value is not None} == {"mean", "max", *known}
