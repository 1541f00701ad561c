"""What tests are called where people read: short, told apart, and printable."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Sequence

    from pytest_gpuserve.report.results import TestResult

NAMED: Final = 3
"""Of many things that have something in common so many are named, and the others counted."""


def short_name(nodeid: str) -> str:
    """A test's id without its file: ``TestA::test_z[50]``."""
    return nodeid.partition("::")[2] or nodeid


def printable(text: str, kept: Container[str] = ()) -> str:
    """A text as one that nothing in it moves or colours: what cannot be printed is shown as its escape.

    That is a line end, a NUL, a sign that turns the direction of a line, and half of a surrogate pair, so that UTF-8
    can write what is left.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in kept else ascii(sign)[1:-1] for sign in text)


def names_of(tests: Collection[TestResult], shown: Callable[[str], str] = str) -> dict[str, str]:
    """The name of each test by its id; tests of one name in several files are told apart by the file."""
    count = Counter(short_name(test.nodeid) for test in tests)
    names = ((test.nodeid, short_name(test.nodeid)) for test in tests)
    return {nodeid: printable(shown(name if count[name] == 1 else nodeid)) for nodeid, name in names}


def some_of(names: Sequence[str]) -> str:
    """The first few of many: ``test_a, test_b, test_c and 9 others``."""
    others = len(names) - NAMED
    text = ", ".join(names[:NAMED])
    return f"{text} and {others} other{'s' if others > 1 else ''}" if others > 0 else text
