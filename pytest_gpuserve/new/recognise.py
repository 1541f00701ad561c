"""What an app is, by its source alone: it is read, not imported."""

from __future__ import annotations

import ast
import keyword
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pytest_gpuserve.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Kind = Literal["mosec", "litserve", "pytriton", "triton", "command"]

BY_COMMAND: Final = "start any other server by its command: python -m pytest_gpuserve.new -- python {} --port={{port}}"

_LIBRARIES: Final[tuple[Kind, ...]] = ("mosec", "litserve", "pytriton")
_READ_REQUEST: Final = frozenset({"decode_request", "deserialize", "forward", "predict"})
_NO_NAME: Final = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class RecognisedApp:
    """An app, and what its source says of it.

    Args:
        kind: Which server fixture takes it.
        place: Its file or folder; of a command the working folder.
        model: Of pytriton, the name of the model that it binds.
        keys: The keys that it reads from a request in JSON.
    """

    kind: Kind
    name: str
    place: Path
    argv: tuple[str, ...] = ()
    model: str = ""
    keys: tuple[str, ...] = ()


def recognise(place: Path) -> RecognisedApp:
    """Recognise an app by its file, or a model repository by its folder.

    Raises:
        UsageProblem: There is nothing, it is no Python, or it is none of the known kinds.
    """
    if place.is_dir():
        if any(place.glob("*/config.pbtxt")):
            return RecognisedApp("triton", suite_name(place.name), place)
        raise UsageProblem(
            f"{place} is no model repository of Triton",
            found="a folder without */config.pbtxt",
            remedies=["name the folder that contains the models' folders, or the app's file"],
        )
    if not place.is_file():
        raise UsageProblem(
            f"there is no app {place}", remedies=["name a file or a model repository relative to the current folder"]
        )
    by_command = BY_COMMAND.format(place.name)
    try:
        tree = ast.parse(place.read_bytes())
    except (SyntaxError, ValueError) as problem:
        raise UsageProblem(f"{place} is no Python file", found=str(problem), remedies=[by_command]) from None
    modules = set(_imported(tree))
    kinds = [library for library in _LIBRARIES if library in modules]
    if len(kinds) != 1:
        found = f"it imports {' and '.join(kinds)}" if kinds else f"it imports none of {', '.join(_LIBRARIES)}"
        raise UsageProblem(f"the kind of server in {place} is not recognised", found=found, remedies=[by_command])
    model = _model(tree) if kinds[0] == "pytriton" else ""
    return RecognisedApp(kinds[0], suite_name(place.stem), place, model=model, keys=tuple(_keys(tree)))


def recognise_command(argv: Sequence[str], folder: Path) -> RecognisedApp:
    """Take a command for a server; its Python is the interpreter of the tests."""
    words = list(argv)
    script = next((word for word in words if word.endswith(".py")), words[0] if words else "")
    if words and re.fullmatch(r"python(3(\.\d+)?)?", words[0]):
        words[0] = "{python}"
    return RecognisedApp("command", suite_name(Path(script).stem), folder, argv=tuple(words))


def suite_name(text: str) -> str:
    """A name that is one in Python, and a file's."""
    name = _NO_NAME.sub("_", text.lower()).strip("_")
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"app_{name}".rstrip("_")


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _model(tree: ast.AST) -> str:
    """The first model that is bound by a literal name; empty where none is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "bind":
            values = [keyword.value for keyword in node.keywords if keyword.arg == "model_name"] or node.args[:1]
            if values and isinstance(values[0], ast.Constant) and isinstance(values[0].value, str):
                return values[0].value
    return ""


def _keys(tree: ast.AST) -> list[str]:
    """Literal keys that functions which read a request take from their first argument, in order."""
    found: dict[str, None] = {}
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and function.name in _READ_REQUEST:
            names = [argument.arg for argument in function.args.args if argument.arg != "self"][:1]
            for node in ast.walk(function):
                if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in names:
                    key = node.slice
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        found[key.value] = None
    return list(found)
