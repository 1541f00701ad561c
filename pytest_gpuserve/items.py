"""What is known of tests once they are collected: their ids, and which of them measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

COLLECTED: Final = pytest.StashKey[set[str]]()
"""Ids of all tests that were collected, before any selection."""

LEFT_OUT: Final = pytest.StashKey[tuple[pytest.Item, ...]]()
"""The tests that we have deselected ourselves, for the device is to be spared them."""

NODEID: Final = pytest.StashKey[str]()
"""Of a test, its id as it was before pytest-xdist's workers appended the name of a group; see `plain_id`."""

MEASURING: Final = "_gpuserve_measuring"
"""A fixture that every measuring fixture of ours depends on. pytest lists it among a test's fixtures exactly if the
test's ``load`` is ours: a project may well have a fixture of that name of its own."""

NEEDS_DEVICE: Final = "_gpuserve_session"
"""The same for fixtures that need to know the device."""


def plain_id(item: pytest.Item) -> str:
    """A test's id as it is without pytest-xdist, and as it can be typed: ``--dist=loadgroup`` appends ``@GROUP``."""
    return item.stash.get(NODEID, item.nodeid)


def measures(item: pytest.Item) -> bool:
    """Whether a test measures, so that the device must be ours alone."""
    return MEASURING in getattr(item, "fixturenames", ())


def needs_device(item: pytest.Item) -> bool:
    """Whether a test needs to know the device."""
    return NEEDS_DEVICE in getattr(item, "fixturenames", ())


def measuring_ids(items: Iterable[pytest.Item]) -> Iterator[str]:
    """The ids of those that measure."""
    return (plain_id(item) for item in items if measures(item))
