"""Texts for people: printable and without secrets; and short unique names of tests."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.measure.histogram import Histogram
from pytest_gpuserve.verdict.metric import Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence

NAMED: Final = 3
"""Number of things that a list names; the rest is counted."""

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
"""Colour codes, which may occur in the middle of a secret."""

_OURS: Final = re.compile(r"[a-z_.]+(p\d+)?")
"""Form of the names of fields and metrics; keys and tokens of services have digits or capitals."""


def short_name(nodeid: str) -> str:
    """A test's id without its file: ``TestA::test_z[50]``."""
    return nodeid.partition("::")[2] or nodeid


def printable(text: str, kept: Container[str] = ()) -> str:
    """Make a text printable: a character that moves or colours text is shown as its escape.

    Such characters are line ends, NUL, marks that turn the direction of a line, and halves of surrogate pairs, which
    UTF-8 could not write.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in kept else ascii(sign)[1:-1] for sign in text)


def with_texts(value: Any, shown: Callable[[str], str]) -> Any:  # noqa: ANN401 -- whatever results are made of
    """Make every text in a result, or a part of one, printable and free of secrets, before anything is written.

    In a text that is escaped, cut or laid out, a secret would not be recognised. Names of fields stay as they are.
    """
    if value is None or isinstance(value, (int, float, Enum, Metric, Histogram)):
        return value
    if isinstance(value, str):
        # A path may be invalid UTF-8.
        return shown(_COLOURS.sub("", value)).encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_known(name, shown): with_texts(each, shown) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(with_texts(each, shown) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.init]
        return replace(value, **{name: with_texts(getattr(value, name), shown) for name in names})
    return value


def _known(name: Any, shown: Callable[[str], str]) -> Any:  # noqa: ANN401 -- a key
    """A printable key: names of fields and metrics stay, but a server's own key may hold a secret."""
    return shown(name) if isinstance(name, str) and not _OURS.fullmatch(name) else name


def names_of(nodeids: Collection[str]) -> dict[str, str]:
    """Name of each test by its id; equal names in several files get the file."""
    count = Counter(map(short_name, nodeids))
    return {nodeid: printable(name if count[name := short_name(nodeid)] == 1 else nodeid) for nodeid in nodeids}


def some_of(names: Sequence[str]) -> str:
    """The first few of many: ``test_a, test_b, test_c and 9 others``."""
    others = len(names) - NAMED
    text = ", ".join(names[:NAMED])
    return f"{text} and {others} other{'s' if others > 1 else ''}" if others > 0 else text


def known_facts(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Known facts as texts by name."""
    for name, value in facts.items():
        if value is not None:
            yield name, ("yes" if value else "no") if isinstance(value, bool) else str(value)
