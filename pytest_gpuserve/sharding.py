"""Tests that are dealt out to several runners, as pytest-split does it: what all runners together will compare.

Each runner collects all tests and then drops those of the others. A claim of a regression has to stand among the
comparisons of all of them, so what was there before they were dealt out is remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

EVERY: Final = pytest.StashKey[tuple[pytest.Item, ...]]()
"""The tests of all runners, where there are several."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which of several runners this is.

    Args:
        number: Its number, from 1.
        of: How many there are.
    """

    number: int
    of: int


class BeforeTheyAreDealtOut:
    """A plugin that remembers the tests of all runners.

    pytest-split registers what deals them out when pytest is configured. Of hooks that want to be last the one that was
    registered last is, so this has to be registered before that: when hooks are declared.
    """

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: Sequence[pytest.Item]) -> None:
        """Remember what is left once ``-k`` and ``-m`` have selected."""
        if part_of(config) is not None:
            config.stash[EVERY] = tuple(items)


def part_of(config: pytest.Config) -> Part | None:
    """Which of several runners this is, by ``--group`` and ``--splits`` of pytest-split; None where it is alone."""
    number, of = config.getoption("group", None), config.getoption("splits", None)
    # Another plugin may call something else so.
    known = isinstance(number, int) and isinstance(of, int) and 1 <= number <= of
    return Part(number, of) if known else None


def tests_of_all_runners(session: pytest.Session) -> Sequence[pytest.Item]:
    """The tests of all runners, where they are dealt out by pytest-split; else those of this one."""
    return session.config.stash.get(EVERY, tuple(session.items))
