"""How waiting requests become batches, and how they are counted, both without torch."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.servers.inside import torch_service
from pytest_gpuserve.servers.inside.tally import MOST_SIZES, Tally, read_tally
from pytest_gpuserve.servers.inside.torch_http import InferenceRequest, Tensor
from pytest_gpuserve.servers.inside.torch_service import GraphShapes, RequestQueue, Waiting
from pytest_gpuserve.servers.inside.torch_worker import COUNTED

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.servers.inside.torch_model import Execution

GUARD_SECONDS = 20.0
LONG_NS = round(1e9 * GUARD_SECONDS)


def request(number: int, rows: int, width: int = 1, arrived_ns: int | None = None) -> Waiting:
    """A request of so many rows; it does not fit to requests of another width."""
    tensor = Tensor("x", "UINT8", (rows, width), bytes(rows * width))
    now_ns = time.perf_counter_ns() if arrived_ns is None else arrived_ns
    return Waiting(InferenceRequest((tensor,), request_id=str(number)), now_ns)


def numbers(batch: list[Waiting]) -> list[int]:
    """Numbers of the requests of a batch."""
    return [int(waiting.asked.request_id) for waiting in batch]


@settings(deadline=None)
@given(
    waiting=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 2)), max_size=12),
    max_rows=st.integers(1, 6),
)
def test_every_request_is_in_one_batch_in_order(waiting: list[tuple[int, int]], max_rows: int) -> None:
    """Batches are of one kind, within the limit or a single request, as full as their order allows, oldest first."""
    queue = RequestQueue(max_rows, 0)
    for number, (rows, width) in enumerate(waiting):
        queue.put(request(number, rows, width, arrived_ns=number))
    batches: list[list[Waiting]] = []
    while sum(map(len, batches)) < len(waiting):
        batches.append(queue.take())
    assert sorted(number for batch in batches for number in numbers(batch)) == list(range(len(waiting)))
    for batch in batches:
        assert len({each.asked.inputs[0].shape[1] for each in batch}) == 1
        assert len(batch) == 1 or sum(each.asked.rows for each in batch) <= max_rows
    for width in (1, 2):
        ours = [batch for batch in batches if batch[0].asked.inputs[0].shape[1] == width]
        order = [number for batch in ours for number in numbers(batch)]
        assert order == sorted(order)
        for batch, following in pairwise(ours):
            assert sum(each.asked.rows for each in [*batch, following[0]]) > max_rows


def test_a_full_batch_does_not_wait() -> None:
    """A full batch goes at once, past an older request that still waits; the rest is not full, and waits again."""
    queue = RequestQueue(2, LONG_NS)
    queue.put(request(0, 1, width=9))
    queue.put(request(1, 1))
    with ThreadPoolExecutor() as pool:
        batch = pool.submit(queue.take)
        queue.put(request(2, 1))
        assert numbers(batch.result(GUARD_SECONDS / 2)) == [1, 2]
        for number in range(3, 6):
            queue.put(request(number, 1))
        assert numbers(queue.take()) == [3, 4]
        batch = pool.submit(queue.take)
        time.sleep(0.05)
        assert not batch.done()
        queue.put(request(6, 1))
        assert numbers(batch.result(GUARD_SECONDS / 2)) == [5, 6]


def test_the_oldest_waits_so_long_and_no_longer() -> None:
    """A batch that is not full goes when its oldest request has waited enough since it arrived, not before."""
    queue = RequestQueue(8, 50_000_000)
    first = request(0, 1)
    queue.put(first)
    queue.put(request(1, 1))
    assert numbers(queue.take()) == [0, 1]
    assert time.perf_counter_ns() >= first.arrived_ns + 50_000_000
    # One that waited for the model has waited already.
    slow = RequestQueue(8, LONG_NS)
    slow.put(request(0, 1, arrived_ns=time.perf_counter_ns() - LONG_NS))
    assert numbers(slow.take()) == [0]


# -- CUDA graphs


def test_each_batch_size_has_its_graph_before_the_first_answer() -> None:
    """Sizes from 1 to the largest are executed three times with the request's first row; later requests run none."""
    sizes: list[int] = []
    inputs: set[bytes] = set()

    def execute(requests: list[InferenceRequest]) -> None:
        sizes.append(len(requests))
        inputs.update(bytes(asked.inputs[0].data) for asked in requests)

    graphs = GraphShapes(3)
    asked = InferenceRequest((Tensor("x", "UINT8", (2, 2), b"abcd"),))
    for _ in range(2):
        graphs.record(execute, asked)
    assert (sizes, inputs) == ([1, 1, 1, 2, 2, 2, 3, 3, 3], {b"ab"})
    assert not graphs.is_new([asked])
    # A shape that comes first under load is warmed up and recorded there.
    other = InferenceRequest((Tensor("x", "UINT8", (1, 3), b"abc"),))
    assert [graphs.is_new([other, other]) for _ in range(4)] == [True, True, False, False]
    # Without batching a request is executed as it is.
    GraphShapes(1).record(execute, asked)
    assert (sizes[9:], inputs) == ([1, 1, 1], {b"ab", b"abcd"})


def test_a_worker_records_graphs_before_it_counts(tmp_path: Path) -> None:
    """The first counted execution comes after those for graphs; one of a shape without a graph counts as compiled."""
    sizes: list[int] = []

    def execute(requests: list[InferenceRequest]) -> list[list[Tensor]]:
        sizes.append(len(requests))
        return [[] for _ in requests]

    execution, tally = cast("Execution", execute), Tally(tmp_path / "tally", MOST_SIZES, COUNTED)
    service = torch_service.Service(
        tally,
        "model",
        [execution],
        max_batch_size=2,
        max_wait_seconds=0.0,
        on_first=lambda _: None,
        graphs=GraphShapes(2),
    )
    for width in (1, 2):
        service._execute(execution, [request(0, 1, width)])
    counted, by_rows = read_tally(tmp_path / "tally", COUNTED)
    assert sizes == [1, 1, 1, 2, 2, 2, 1, 1]
    assert (counted["executions"], counted["compiling"]) == (2, 1)
    assert (counted["executed"], counted["items"], by_rows) == (2, 2, {1: 2})
    assert 0 < counted["compiling_ns"] < counted["compute_ns"]
