"""The files of a new suite, made from templates, and writing those that do not exist."""

from __future__ import annotations

import json
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.process.secrets import secret_headers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.new.app import App, Exchange

TEMPLATES: Final = Path(__file__).with_name("templates")

_IN_SOURCE: Final = 80  # longer bodies go into files of their own


def suite_files(
    app: App, asked: Exchange, *, root: Path, python: str, runner: tuple[str, str] | None
) -> dict[Path, bytes]:
    """The contents of a suite's files and workflows, by their paths; ``python`` as the user named it."""
    folder, request = root / "suites" / app.name, asked.request
    files: dict[Path, bytes] = {}

    def constant(name: str, body: bytes) -> str:
        if len(body) <= _IN_SOURCE:
            return f"{name} = {body!r}"
        file = f"{name.lower()}.bin"
        files[folder / file] = body
        return f'{name} = Path(__file__).with_name("{file}").read_bytes()'

    constants, parts = [], [json.dumps(request.method), json.dumps(request.path)]
    if request.body:
        constants.append(constant("REQUEST", request.body))
        parts.append("body=REQUEST")
    if request.headers:
        parts.append(f"headers={_headers(request.headers)}")
    answer, another = asked.answers
    fields = sorted(_fields(answer) & _fields(another))
    doc = "Only the status of each answer is checked: the answer differs from one request to the next."
    if answer == another:
        constants.append(constant("ANSWER", answer))
        parts.append("expect=ANSWER")
        doc = "Each answer must equal the one recorded when this test was written."
    elif fields:
        constants.append(f"FIELDS = {fields!r}")
        parts.append("expect=lambda body: json.loads(body).keys() >= {*FIELDS}")
        doc = "The fields of each answer are checked: their values differ from one request to the next."
    if asked.untold:
        doc += "\n\n    The request is a guess: the app itself did not tell which requests it answers.\n    "
    marks = (("import json", "json.loads"), ("import os", "os.environ"), ("from pathlib import Path", "Path("))
    imports = [f"\n{line}" for line, mark in marks if any(mark in text for text in (*parts, *constants))]
    extras = {"command": "report", "triton": "pytriton,report"}.get(app.kind, f"{app.kind},report")
    projects = {"requirements.txt": " -r requirements.txt", "pyproject.toml": " -e ."}
    project = next((words for name, words in projects.items() if (root / name).is_file()), "")
    words = {
        "NAME": app.name,
        "DOC": doc,
        "IMPORTS": "".join([*imports, "\n"]) if imports else "",
        "CONSTANTS": "\n".join(["", *constants, ""]) if constants else "",
        "REQUEST": ",\n            ".join(parts),
        "FIXTURE": f"{app.kind}_server",
        "ARGUMENTS": _arguments(app, root, folder, python),
    }
    files[folder / "conftest.py"] = _filled("conftest.txt", words).encode()
    files[folder / f"test_{app.name}.py"] = _filled("test.txt", words).encode()
    for name, text in workflow_files(app.name, f"'pytest-gpuserve[{extras}]'{project}", runner).items():
        files[root / ".github" / "workflows" / name] = text.encode()
    return files


def workflow_files(suite: str, install: str, runner: tuple[str, str] | None) -> dict[str, str]:
    """The workflows of a suite by their names; those of a GPU runner gate all suites of the repository.

    Args:
        suite: Name of the suite.
        install: The requirements for pip, as words of a shell.
        runner: Labels of a GPU runner, separated by commas, and its GPU's name; None measures on a host of GitHub.
    """
    words = {"NAME": suite, "INSTALL": install}
    if runner is None:
        return {f"gate-{suite}.yml": _filled("gate.yml", words)}
    words |= dict(zip(("RUNNER", "GPU"), runner, strict=True))
    return {name: _filled(name, words) for name in ("gate-gpu.yml", "post-comment.yml", "baseline-update.yml")}


def _filled(template: str, words: Mapping[str, str]) -> str:
    """A template with its words, each written ``@WORD@``."""
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


def write_missing(files: Mapping[Path, bytes]) -> tuple[list[Path], list[Path]]:
    """Write the files that do not exist; return those, and the others. Raises UsageProblem if one cannot be written."""
    left = [path for path in files if path.exists()]
    written = [path for path in files if path not in left]
    for path in written:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[path])
        except OSError as problem:
            raise UsageProblem(f"{path} cannot be written", found=str(problem)) from None
    return written, left


def _fields(answer: bytes) -> set[str]:
    """Field names of a JSON object; empty for any other answer."""
    try:
        found = json.loads(answer)
    except ValueError:
        return set()
    return set(found) if isinstance(found, dict) else set()


def variable_of(header: str) -> str:
    """Variable with a secret header's value for a written test."""
    return header.upper().replace("-", "_")


def _headers(headers: Mapping[str, str]) -> str:
    """Headers as source; secrets do not go into a committed file."""
    secrets = secret_headers(headers)
    entries = (
        f"{json.dumps(name)}: " + (f'os.environ["{variable_of(name)}"]' if name in secrets else json.dumps(value))
        for name, value in headers.items()
    )
    return f"{{{', '.join(entries)}}}"


def _arguments(app: App, root: Path, folder: Path, python: str) -> str:
    """Arguments of the fixture, with paths relative to the suite's folder."""
    if "/" in python and not Path(python).is_absolute():
        python = Path(relpath(root / python, folder)).as_posix()
    place = json.dumps(Path(relpath(app.place, folder)).as_posix())
    parts = [f"{json.dumps(app.argv)}, cwd={place}" if app.kind == "command" else place]
    parts += [f"{name}={json.dumps(value)}" for name, value in (("model", app.model), ("python", python)) if value]
    return ", ".join(parts)
