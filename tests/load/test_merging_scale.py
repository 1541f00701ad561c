"""Quantiles of many workers are those of all requests in one list, however the requests were dealt out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.benchmarks.merged_p99 import REPLICAS, error_of_a_load

if TYPE_CHECKING:
    from tests.benchmarks.merged_p99 import Replicas

BUCKET = 5e-4
"""A bucket's middle is off by no more."""


@pytest.mark.parametrize("replicas", REPLICAS, ids=lambda replicas: replicas.name)
def test_the_merged_p99_is_right_where_an_average_of_p99s_is_not(replicas: Replicas) -> None:
    """Of forty loads over each set of replicas, the merged p99 of none is off by more than half a bucket."""
    errors = [error_of_a_load(replicas, seed, requests=4000) for seed in range(40)]
    assert max(abs(error.merged) for error in errors) <= BUCKET
    # Each worker has its 99 % at or below the largest of their p99s, and so have all together.
    assert min(error.largest for error in errors) >= 0
    wrong = sum(abs(error.averaged) > 0.1 for error in errors)
    assert wrong == (0 if replicas.alike else len(errors))
