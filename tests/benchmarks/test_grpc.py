"""What an inference over gRPC costs the client: ours against perf_analyzer on one Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.benchmarks.cost import compare
from tests.benchmarks.triton_loads import ours_over_grpc, perf_analyzer_over

if TYPE_CHECKING:
    from pathlib import Path

    from tests.benchmarks.rows import Table
    from tests.benchmarks.triton_loads import Triton

pytestmark = [pytest.mark.slow, pytest.mark.alone]

CONCURRENCY = 16
REQUESTS = 15_000
PAIRS = 4


def test_perf_analyzer_over_grpc(tmp_path: Path, triton_server: Triton, table: Table) -> None:
    """An inference over Triton's gRPC endpoint takes at most 1.5 of perf_analyzer's CPU time."""
    found = compare(
        ours_over_grpc(tmp_path, triton_server, concurrency=CONCURRENCY, requests=REQUESTS),
        perf_analyzer_over("grpc", triton_server, concurrency=CONCURRENCY, requests=REQUESTS),
        pairs=PAIRS,
    )
    assert table.compare_seconds("client CPU a request, Triton gRPC", "perf_analyzer", found.cost, most=1.5), found
