"""The table of the five systems names every row once, and only tests that exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

ROWS = {"000": 12, "001": 12, "002": 11, "003": 16, "004": 12}
"""How many of each system."""

TEXT = (ROOT / "tests" / "suites" / "README.md").read_text(encoding="utf-8")
TABLE = TEXT.split("<!-- rows -->")[1].split("<!-- end of rows -->")[0]
LINES = [line for line in TABLE.splitlines() if re.match(r"\| \d", line)]


@cache
def functions_of(module: str) -> frozenset[str]:
    """The test functions of the one test module of this name."""
    (file,) = [path for folder in ("suites", "tests") for path in (ROOT / folder).rglob(f"{module}.py")]
    return frozenset(re.findall(r"^def (test_\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE))


def test_every_row_stands_there_once() -> None:
    """No row of a system is dropped, and none stands there twice."""
    wanted = [f"{system}-{number}" for system, count in ROWS.items() for number in range(1, count + 1)]
    assert [line.split("|")[1].strip() for line in LINES] == wanted


def test_what_a_row_names_is_there() -> None:
    """Each test that a row names is a function of that module; a row without one says why."""
    for line in LINES:
        named = re.findall(r"`(test_\w+)::(test_\w+)`", line)
        assert named or "every `load`" in line, line
        for module, function in named:
            assert function in functions_of(module), f"{module} has {sorted(functions_of(module))}"
