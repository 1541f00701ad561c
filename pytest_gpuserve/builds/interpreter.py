"""Other interpreters: their discovery, a trial, and queries for their packages and import paths."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping


OLDEST: Final = [3, 8]
"""Oldest Python that reports its packages."""

LONGEST_HEAD: Final = 4096
"""Bytes of a script that may name its interpreter and its modules."""

_PYTHON: Final = re.compile(r"python[\d.]*")
"""Name of an interpreter's file."""

_LONG_PATH: Final = r"""#!/bin/sh\s+'''exec' "?(.+?)"? "\$0\""""

ASK_SECONDS: Final = 60.0
"""Longest wait for an interpreter's answer; a cold disk may need many of these seconds."""

# Modules must not be imported from the working folder: it is the app's, and an app may have a json.py.
PREPARE: Final = "import sys; sys.path[:] = [entry for entry in sys.path if entry]\nimport json\n"

_BEFORE: Final = f"{PREPARE}given = json.loads(sys.argv[1])\n"

_AFTER: Final = '\nprint("\\n" + json.dumps(answer))'

_VERSIONS: Final = """
import importlib.metadata, platform
answer = {"python": platform.python_version()}
for name in given:
    try:
        answer[name] = importlib.metadata.version(name) or "unknown"
    except importlib.metadata.PackageNotFoundError:
        continue
"""

_ROOTS: Final = """
import glob, importlib.metadata, os, urllib.parse
places = []
installed = {*sys.path} - {*map(os.path.abspath, os.environ.get("PYTHONPATH", "").split(os.pathsep))}
for dist in importlib.metadata.distributions():
    note = json.loads(dist.read_text("direct_url.json") or "{}")
    url, info = urllib.parse.urlsplit(note.get("url", "")), note.get("dir_info")
    if info is None or url.scheme != "file" or not (given or info.get("editable")):
        continue
    folder = urllib.parse.unquote(url.path)
    # A path file names src alone, so what lies beside it (a profile.py) is not imported.
    usual = [f"{folder}/src", folder][: 1 if f"{folder}/src" in installed else 2]
    # A copy does not name another folder that it was made from, such as python/ or lib/.
    names = {} if info.get("editable") else {file.parts[0] for file in dist.files or () if file.suffix == ".py"}
    lost = [name for name in names if not any(os.path.exists(f"{place}/{name}") for place in usual)]
    found = [each for name in sorted(lost) for each in sorted(glob.glob(f"{glob.escape(folder)}/*/{name}"))]
    places += [*usual, *map(os.path.dirname, found)]
answer = [*sys.path, *places]
"""

_MODULES: Final = """
import importlib.machinery, importlib.util
answer = {}
hooks = [each for each in sys.meta_path if each is not importlib.machinery.PathFinder and hasattr(each, "find_spec")]
for name in given:
    try:
        top, *inner = name.split(".")
        spec = importlib.util.find_spec(top)
        for count, part in enumerate(inner, 2):
            # Without an import of what contains it, which is therefore not named to the path.
            places, full = spec and spec.submodule_search_locations, ".".join(name.split(".")[:count])
            spec = importlib.machinery.PathFinder.find_spec(part, places) if places else None
            spec = spec or next(filter(None, (hook.find_spec(full, places) for hook in hooks if places)), None)
    except (ImportError, ValueError):
        continue
    # One without an __init__.py has only folders, and a module of Python's own may have neither.
    places = [spec.origin] if spec and spec.has_location else list(spec and spec.submodule_search_locations or [])
    if places:
        answer[name] = places[0]
"""


@lru_cache
def find_python(name: str, folder: Path, option: str = "--against-python") -> str:
    """Find an interpreter and try it.

    Args:
        name: Its file, absolute or relative to the folder, or a name on the PATH.
        folder: Folder of the file with the name.
        option: The option with the name, for messages.

    Returns:
        Its absolute path; links are not followed, because an interpreter finds its packages by its own place.

    Raises:
        UsageProblem: The file does not exist, cannot be executed, or is not a Python.
    """
    typed = Path(os.path.expanduser(name))  # noqa: PTH111 -- pathlib's raises for an unknown ~user
    path = shutil.which(name) if len(typed.parts) == 1 and "/" not in name else str(folder / typed)
    looked = [f"PATH={os.environ.get('PATH', '')}"] if path is None else [path]
    if path is None or not Path(path).is_file():
        found = "the file does not exist" if name else "no name"
    else:
        path = os.path.abspath(path)  # noqa: PTH100 -- Path.resolve would follow the link
        try:
            version = query_interpreter(path, "answer = list(sys.version_info[:3])", os.environ, folder)
        except ServerFailed as problem:
            found = problem.found
        else:
            if isinstance(version, list) and version >= OLDEST:
                return path
            found = f"its version is {version}"
    raise UsageProblem(
        f"{option}={name} is not a Python that can run servers",
        found=found,
        looked=looked,
        remedies=[f"give the interpreter of a virtual environment, such as {option}=/path/to/.venv/bin/python"],
    )


def interpreter_of(program: str) -> str | None:
    """Interpreter that runs a program: the program itself, or that of a Python script; None if neither is a Python.

    Args:
        program: Its absolute path.
    """
    if _PYTHON.fullmatch(Path(program).name):
        return program
    begin = _begin(program)
    # pip writes the second form for a path that is too long for the first one, or contains a space.
    first, long = re.match(r"#!\s*(\S+)(.*)", begin), re.match(_LONG_PATH, begin)
    words = [long[1]] if long else [first[1], *first[2].split()] if first else []
    if words and Path(words[0]).name == "env":
        words = [shutil.which(word) or word for word in words[1:] if not word.startswith("-")]
    return words[0] if words and _PYTHON.fullmatch(Path(words[0]).name) else None


def imported_by(program: str) -> list[str]:
    """Names of the modules that a script imports, such as pip's scripts: ``from shop.cli import main``."""
    return re.findall(r"^(?:from|import) ([\w.]+)", _begin(program), re.MULTILINE)


def _begin(program: str) -> str:
    """The begin of a program; empty if it cannot be read."""
    try:
        with Path(program).open("rb") as file:
            return os.fsdecode(file.read(LONGEST_HEAD))
    except OSError:
        return ""


def import_roots(python: str, environment: Mapping[str, str], cwd: Path, *, copies: bool = False) -> tuple[Path, ...]:
    """Folders of an interpreter's imports: its ``sys.path``, and its editable installs with their ``src``.

    Args:
        python: The interpreter.
        environment: All its variables.
        cwd: Its working folder, which relative entries start from.
        copies: Also the folders that were installed as copies (``pip install .``).

    Raises:
        ServerFailed: The interpreter does not answer.
    """
    return tuple(dict.fromkeys(map(Path, query_interpreter(python, _ROOTS, environment, cwd, copies))))


@lru_cache
def installed_versions(python: str, distributions: tuple[str, ...]) -> dict[str, str]:
    """Versions of an interpreter and of these packages in it, without missing ones.

    Raises:
        ServerFailed: The interpreter does not answer.
    """
    found: dict[str, str] = query_interpreter(python, _VERSIONS, os.environ, Path.cwd(), distributions)
    return found


def find_modules(names: Collection[str], python: str, environment: Mapping[str, str], cwd: Path) -> dict[str, Path]:
    """Places from which an interpreter would import modules, without an import.

    Args:
        names: Modules and packages, also inner ones (``shop.app``).
        python: The interpreter.
        environment: All its variables.
        cwd: Its working folder.

    Raises:
        ServerFailed: The interpreter does not answer.
    """
    found = query_interpreter(python, _MODULES, environment, cwd, sorted(names)) if names else {}
    return {name: Path(origin) for name, origin in found.items()}


def modules_in(folders: Iterable[Path]) -> set[str]:
    """Names of the modules and packages in folders; a folder without an ``__init__.py`` is not taken for one."""
    entries = [entry for folder in folders for entry in folder.iterdir()]
    modules = [entry for entry in entries if entry.suffix == ".py" or (entry / "__init__.py").is_file()]
    return {name for name in (entry.name.removesuffix(".py") for entry in modules) if name.isidentifier()}


def query_interpreter(
    python: str,
    script: str,
    environment: Mapping[str, str],
    cwd: Path,
    given: object = None,
    *,
    what: str = "its import paths",
) -> Any:  # noqa: ANN401 -- whatever the script answers
    """Run a script in an interpreter and return the value that it gives the name ``answer``.

    Args:
        python: The interpreter.
        script: Lines of the script, for any Python from 3.8 on. ``sys`` and ``json`` are imported.
        environment: All its variables.
        cwd: Its working folder.
        given: Value of the variable ``given`` in the script; like the answer, a value of JSON.
        what: The queried facts, for messages.

    Raises:
        ServerFailed: The interpreter does not answer.
    """
    try:
        done = subprocess.run(
            [python, "-c", _BEFORE + script + _AFTER, json.dumps(given)],
            cwd=cwd,
            env=dict(environment),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=ASK_SECONDS,
            text=True,
            errors="replace",
            check=False,
        )
        # An interpreter may print other lines at its start, but the answer is the last one.
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        found = f"no answer in {format_seconds(ASK_SECONDS)}"
    except OSError as problem:
        found = str(problem)
    except (ValueError, IndexError):
        found = (done.stderr or done.stdout).strip()[-2000:] or f"exit code {done.returncode}"
    raise ServerFailed(
        f"the server's interpreter did not report {what}",
        found=found,
        looked=[python],
        remedies=["use a Python of 3.8 or later: python=... of the server, or --against-python=EXE"],
    )
