"""What a load was, as a baseline has to have it in common with a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuserve.comparison.baseline_store import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import LoadShape


def workload_of(target: Target, shape: LoadShape) -> Workload:
    """The workload of a load of one server."""
    kind = target.server.kind
    return Workload(
        must_match={**kind.workload(), **target.fingerprint(), **shape.workload()},
        information=kind.information(),
    )


def workload_of_duel(target: Target, opponent: Target, shape: LoadShape) -> Workload:
    """The workload of two servers side by side, each with its own words."""
    one, other = target.server.kind, opponent.server.kind
    return Workload(
        must_match={
            **_prefixed("a", {**one.workload(), **target.fingerprint()}),
            **_prefixed("b", {**other.workload(), **opponent.fingerprint()}),
            **shape.workload(),
        },
        information={**_prefixed("a", one.information()), **_prefixed("b", other.information())},
    )


def _prefixed(name: str, words: Mapping[str, str]) -> dict[str, str]:
    return {f"{name}.{key}": value for key, value in words.items()}
