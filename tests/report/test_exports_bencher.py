"""Bencher Metric Format: benchmarks of measures, each a number with its bounds."""

from __future__ import annotations

from typing import Annotated

import msgspec
from hypothesis import given

from pytest_gpuserve.report.exports.bencher import document
from tests.report.exported import NAMES, NODEID, UNHURRIED, load_of, named, one_test
from tests.support.builders import session

Name = Annotated[str, msgspec.Meta(min_length=1)]
Slug = Annotated[str, msgspec.Meta(pattern="^[a-z0-9]+(-[a-z0-9]+)*$", max_length=64)]


class Metric(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A metric by the JSON schema of Bencher Metric Format (draft 7, ``bmf.json``), with nothing beside it."""

    value: float
    lower_value: float | msgspec.UnsetType = msgspec.UNSET
    upper_value: float | msgspec.UnsetType = msgspec.UNSET


def read(text: str) -> dict[str, dict[str, Metric]]:
    """Read a document as strictly as its schema and Bencher's limits of names."""
    found: dict[str, dict[str, Metric]] = msgspec.json.decode(text, type=dict[Name, dict[Slug, Metric]])
    assert all(len(name.encode()) <= 1024 for name in found)
    return found


def test_what_is_not_sound_is_no_benchmark() -> None:
    """A load without numbers that can be trusted is not there at all."""
    result = one_test(load_of(sessions=[session(problems=("late",))]), load_of(label="load 2"))
    assert list(read(document(result))) == [f"{NODEID} load 2"]


@UNHURRIED
@given(NAMES)
def test_no_name_breaks_the_file(nodeids: list[str]) -> None:
    """Each load is a benchmark of its own, whatever its test is called, within Bencher's limits."""
    assert len(read(document(named(*nodeids)))) == len(nodeids)
