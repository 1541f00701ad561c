"""The page about how far a load goes: its arithmetic is right, and no figure stands there without how it is known."""

from __future__ import annotations

import io
import math
import statistics
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pytest_gpuserve.load.schedule import Constant, Gamma
from tests.benchmarks.scale import COMPUTED, SIMULATED, Costs, pool_ends, scale, scale_table
from tests.benchmarks.scale_costs import ArrivalCost, arrival_cost
from tests.benchmarks.scale_model import (
    WORKER_SHARE,
    network_bits,
    out_of_order,
    rate_drawn_at_most,
    uses,
    worker_share,
    workers_needed,
)
from tests.benchmarks.scale_ticks import gather, pool

if TYPE_CHECKING:
    from rich.table import Table

RATES = st.floats(1, 1e8)
COSTS = st.floats(1e-7, 1e-3)
FAST = Costs(1e-5, {"Poisson": ArrivalCost(3e-7, 1.5e-7), "gamma, shape 0.25": ArrivalCost(3e-7, 1e-4)})


def text_of(table: Table) -> list[list[str]]:
    """The cells as they are printed, the header first."""
    file = io.StringIO()
    Console(file=file, width=250).print(table)
    lines = [line for line in file.getvalue().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not line.startswith("|--")]


@given(rate=RATES, request_seconds=COSTS, drawn_seconds=st.floats(0, 1e-5))
def test_so_many_workers_are_needed_and_no_fewer(rate: float, request_seconds: float, drawn_seconds: float) -> None:
    """Each then uses half a core at most, and with one worker fewer each would use more."""
    costs = {"request_seconds": request_seconds, "drawn_seconds": drawn_seconds}
    workers = workers_needed(rate, **costs)
    if workers is None:
        assert rate * drawn_seconds >= WORKER_SHARE
        return
    assert worker_share(rate, workers, **costs) <= WORKER_SHARE * (1 + 1e-9)
    assert workers == 1 or worker_share(rate, workers - 1, **costs) > WORKER_SHARE * (1 - 1e-9)


def test_known_figures() -> None:
    """By hand: 28 workers send a million requests/s of 10 us each, of which drawing 0.15 us is every worker's."""
    assert workers_needed(1e6, request_seconds=1e-5, drawn_seconds=1.5e-7) == math.ceil(9.85 / 0.35) == 29
    assert workers_needed(1e6, request_seconds=1e-5, drawn_seconds=1e-6) is None
    assert workers_needed(10.0, request_seconds=1e-5, drawn_seconds=0.0) == 1
    assert rate_drawn_at_most(1e-6) == pytest.approx(9e5)
    assert rate_drawn_at_most(0.0) == math.inf
    # One segment of 1000 + 90 bytes; 104 of them for 150 000 bytes.
    assert network_bits(1e6, 1000) == 8 * 1e6 * 1090
    assert network_bits(1.0, 150_000) == 8 * (150_000 + 104 * 90)
    assert out_of_order(1e6) == pytest.approx(100)


def test_the_scarcest_is_what_is_used_most() -> None:
    """Of large bodies it is the network, of many reports the coordinator, of a slow schedule its drawing."""
    plain = {"drawn_seconds": 1e-9, "coordinator_share": 0.01, "session_share": 0.01, "session_bytes": 1e6}
    for name, value, what in (
        ("body_bytes", 10**6, "network"),
        ("coordinator_share", 0.8, "coordinator"),
        ("session_share", 0.8, "session's core"),
        ("session_bytes", 2e10, "memory"),
        ("drawn_seconds", 1e-5, "drawing"),
    ):
        scarcest, share = uses(1e5, **{**plain, "body_bytes": 100, name: value}).scarcest  # type: ignore[arg-type]  # one of them is another
        assert what in scarcest
        assert share > 0.5


def test_a_constant_schedule_draws_nothing_for_others() -> None:
    """What a worker pays for the arrivals of others is far below what it pays for its own; of a gamma it is not."""
    constant = [arrival_cost(Constant(1e6), arrivals=5_000) for _ in range(3)]
    gamma = [arrival_cost(Gamma(1e6, 4.0), arrivals=5_000) for _ in range(3)]
    assert statistics.median(cost.drawn / cost.own for cost in constant) < 0.1
    assert statistics.median(cost.drawn for cost in gamma) > 3 * statistics.median(cost.drawn for cost in constant)


def test_every_row_says_how_it_is_known() -> None:
    """Also where no number of workers would do, which is not shown as a number."""
    scales = [scale(rate, FAST, ticks=1) for rate in (1e4, 2e4)]
    header, *rows = text_of(scale_table(scales, FAST))
    assert header == ["", "10000/s", "20000/s", "how it is known"]
    assert {row[-1] for row in rows} == {SIMULATED, COMPUTED}
    assert all(cell for row in rows for cell in row)
    known = {row[0]: row[1:3] for row in rows}
    assert known["workers, each 50 % of a core"] == ["1", "1"]
    assert known["the same with gamma arrivals, shape 0.25"] == ["no number of them"] * 2
    assert known["arrivals whose order the clocks do not tell"] == ["1", "2"]


def test_reports_of_a_pool_merge_to_its_p99() -> None:
    """Drawn reports go through the code of real ones; a larger pool is computed in proportion."""
    found = gather(pool(8, per_tick=400, ticks=2, sigma=0.3))
    assert abs(found.merged_error) <= 5e-4
    assert min(found.coordinator_seconds, found.session_seconds, found.kept_bytes) > 0
    ends = pool_ends(8, found)
    assert ends["the coordinator's core"] == pytest.approx(8 * 0.9 / (10 * found.coordinator_seconds))
