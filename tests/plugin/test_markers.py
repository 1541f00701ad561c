"""Mistakes in markers are told of a test by the id that can be typed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuserve.items import NODEID
from pytest_gpuserve.markers import check_markers

PLAIN = "suites/perf/test_perf.py::test_it[4]"


@pytest.mark.parametrize(
    "mark",
    [
        pytest.mark.gpuserve(thruput=0.05),
        pytest.mark.gpuserve(0.05),
        pytest.mark.gpuserve(p99=0),
        pytest.mark.gpuserve(throughput=1),
        pytest.mark.gpuserve(gpu=4),
        pytest.mark.gpuserve(one_at_a_time=1),
    ],
    ids=["metric", "positional", "value", "all of it", "device", "truth"],
)
@pytest.mark.parametrize("nodeid", [f"{PLAIN}@a", PLAIN], ids=["grouped", "plain"])
def test_a_group_is_no_part_of_the_id(mark: pytest.MarkDecorator, nodeid: str) -> None:
    """Under ``--dist=loadgroup`` an item has another id, which pytest does not take as an argument."""
    item: Any = SimpleNamespace(
        nodeid=nodeid,
        stash=pytest.Stash(),
        iter_markers_with_node=lambda name: [("node", mark.mark)] if name == "gpuserve" else [],
    )
    if nodeid != PLAIN:
        item.stash[NODEID] = PLAIN
    with pytest.raises(pytest.UsageError) as told:
        check_markers(item)
    assert str(told.value).startswith(f"{PLAIN}: @pytest.mark.gpuserve")
