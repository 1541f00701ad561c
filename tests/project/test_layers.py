"""Imports go one way, from the plugin down to units and errors; the table of the five systems is whole.

The order of imports is said once, in ``LAYERS``; a new module has to be placed there on purpose.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest_gpuserve

PACKAGE = "pytest_gpuserve"
ROOT = Path(pytest_gpuserve.__file__).parent

LAYERS: tuple[tuple[str, ...], ...] = (
    ("new",),
    ("plugin",),
    ("doctor",),
    ("fixture_types", "testing"),
    ("compare",),
    ("answers",),
    ("experiment",),
    ("servers", "load", "store", "report"),
    ("builds",),
    ("measure",),
    ("verdict",),
    ("device",),
    ("process",),
    ("__init__",),
    ("units", "errors"),
)
"""Rooms from the top: each imports only from the layers below it, and a folder also from itself."""

IMPORT_PYTEST = frozenset({"plugin", "testing"})
"""All that know pytest; the rest could serve another tool."""

NEVER = frozenset({"_pytest", "torch", "transformers", "mosec", "litserve", "tritonclient", "pytriton", "numpy"})
"""A server's libraries live in its process, the plugin is loaded by every pytest run, pytest's inside is its own."""

INSIDE = "servers/inside/"
"""Code that runs in a server's process, with the server's own library."""

INSIDE_BANNED = frozenset({"numpy", "msgspec", "psutil", "prometheus_client", "pynvml", "pytest", "_pytest"})
"""Packages that a server's interpreter need not have."""

INSIDE_ROOMS = ("errors", "units", "servers.inside")
"""The modules of ours that need nothing but the standard library."""

PURE = frozenset({"verdict", "report"})
"""Rooms of pure functions: the same numbers give the same verdict and the same text."""

IMPURE = frozenset({"asyncio", "subprocess", "time", "os", "random", "socket", "threading"})
"""Packages that they do without."""

FILES = (path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
MODULES = sorted(file for file in FILES if not file.startswith("docs/"))
"""All but the configuration of the pages, which Sphinx reads."""


NAMED = {file.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): file for file in MODULES}
"""Files by the names of their modules, without the package's."""


def room_of(file: str) -> str:
    """The folder of a module, or the module where it stands alone."""
    return file.partition("/")[0].removesuffix(".py")


def depth(room: str) -> int | None:
    """The layer of a room, from the top; None if it has none."""
    return next((number for number, rooms in enumerate(LAYERS) if room in rooms), None)


def imported(source: str) -> Iterator[str]:
    """Every module that a source imports, wherever in it: in functions and for type checkers too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield "relative import"
            elif node.module == PACKAGE:
                yield from (f"{PACKAGE}.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


def broken_rules(file: str, source: str) -> list[str]:
    """The rules that a module's imports break, in words."""
    room = room_of(file)
    own = depth(room)
    if own is None:
        return [f"{file} is in no layer: place it in LAYERS"]
    banned = NEVER | (IMPURE if room in PURE else frozenset()) | (frozenset() if room in IMPORT_PYTEST else {"pytest"})
    if file.startswith(INSIDE):
        banned = INSIDE_BANNED
    broken = []
    for module in imported(source):
        top, _, rest = module.partition(".")
        if top == PACKAGE and file.startswith(INSIDE) and not rest.startswith(INSIDE_ROOMS):
            broken.append(f"{file} imports {module}, which a server's interpreter may not be able to")
            continue
        if top == PACKAGE:
            target = rest.partition(".")[0] or "__init__"
            # A name that is no module stands in the package's own file.
            layer = depth(target) if depth(target) is not None else depth("__init__")
            assert layer is not None
            if layer <= own and target != room:
                broken.append(f"{file} imports {module}, which is not below it")
        elif module == "relative import":
            broken.append(f"{file} imports relatively")
        elif top in banned:
            broken.append(f"{file} imports {module}")
    return broken


def test_every_room_is_there() -> None:
    """The walk sees the package, folders and all, and the order names no room that is gone."""
    assert {"plugin/options.py", "units.py", "verdict/verdict.py", "servers/mosec.py"} <= set(MODULES)
    rooms = {room for layer in LAYERS for room in layer}
    assert rooms == {room_of(file) for file in MODULES}
    assert {*IMPORT_PYTEST, *PURE} <= rooms


def test_imports_go_one_way() -> None:
    """No module imports from its own layer or from one above, nor what its room keeps out."""
    assert [rule for file in MODULES for rule in broken_rules(file, (ROOT / file).read_text(encoding="utf-8"))] == []


def test_imports_make_no_circle() -> None:
    """No two modules import each other, directly or through others, not even for their types."""
    sources = {name: (ROOT / file).read_text(encoding="utf-8") for name, file in NAMED.items()}
    found = {name: {each.removeprefix(f"{PACKAGE}.") for each in imported(source)} for name, source in sources.items()}
    TopologicalSorter({name: modules & NAMED.keys() - {name} for name, modules in found.items()}).prepare()


def test_a_reference_to_an_own_extra_has_no_marker() -> None:
    """The build backend drops such a marker: pip then compiled numpy 1 on Python 3.13."""
    references = re.findall(r'"(pytest-gpuserve\[[^"]*)"', (ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert references
    assert [each for each in references if ";" in each] == []


# -- the table

ROWS = {"000": 12, "001": 12, "002": 11, "003": 16, "004": 12}
"""How many of each system."""

TEXT = (ROOT.parent / "tests" / "suites" / "README.md").read_text(encoding="utf-8")
TABLE = TEXT.split("<!-- rows -->")[1].split("<!-- end of rows -->")[0]
LINES = [line for line in TABLE.splitlines() if re.match(r"\| \d", line)]


@cache
def functions_of(module: str) -> frozenset[str]:
    """The test functions of the one test module of this name."""
    (file,) = [path for folder in ("suites", "tests") for path in (ROOT.parent / folder).rglob(f"{module}.py")]
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
