"""Result files of a run, and how each is written."""

from __future__ import annotations

import os
import traceback
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import pytest

from pytest_gpuserve.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_gpuserve.report.results import SessionResult

    Renderer = Callable[[SessionResult], str]
    """Renders the text of a file."""


class Form(Enum):
    """Form of a file; the value names its renderer, which is imported only when needed."""

    JSON = "pytest_gpuserve.report.result_json:document"
    HTML = "pytest_gpuserve.report.html:document"
    MARKDOWN = "pytest_gpuserve.report.markdown:comment"
    BENCHMARK = "pytest_gpuserve.report.benchmark_json:document"


_FILES: Final = (
    ("gpuserve_json", Form.JSON, "write the results as JSON"),
    ("gpuserve_report", Form.HTML, "write a report for people: one HTML file that needs no network"),
    ("gpuserve_markdown", Form.MARKDOWN, "write the results as markdown, for a comment on a pull request"),
    ("gpuserve_benchmark_json", Form.BENCHMARK, "write the results as pytest-benchmark's JSON, for Bencher and others"),
)
_NAMES: Final = {Form.JSON: "results", Form.HTML: "report"}


class Output(NamedTuple):
    """A file to write.

    Args:
        flag: The option, as it was typed.
    """

    flag: str
    form: Form
    path: Path


def add_output_options(parser: pytest.Parser, group: pytest.OptionGroup) -> None:
    """Declare the options and ini settings of output files."""
    for name, _, text in _FILES:
        flag = f"--{name.replace('_', '-')}"
        group.addoption(flag, metavar="FILE", help=text)
        parser.addini(name, f"like {flag}, relative to the rootdir", default="")


def read_outputs(config: pytest.Config) -> tuple[Output, ...]:
    """Read and check the output options, long before the first file is written.

    Raises:
        pytest.UsageError: A file cannot be written, or two options name the same file.
    """
    found = []
    for name, form, _ in _FILES:
        flag = f"--{name.replace('_', '-')}"
        typed = config.getoption(flag)
        text = str(config.getini(name) if typed is None else typed).strip()
        if text:
            found.append(_output(config, f"{flag}={text}", form, text, typed=typed is not None))
    paths: dict[Path, Output] = {}
    for output in found:
        other = paths.setdefault(Path(os.path.realpath(output.path)), output)
        if other is not output:
            raise pytest.UsageError(f"{other.flag} and {output.flag} would overwrite each other: name two files")
    return tuple(found)


def clear_outputs(outputs: Iterable[Output]) -> None:
    """Remove an older run's files, so that its results are not taken for this run's.

    Raises:
        pytest.UsageError: A file cannot be removed.
    """
    for output in outputs:
        try:
            output.path.unlink(missing_ok=True)
        except OSError as problem:
            raise pytest.UsageError(f"{output.flag}: the older file cannot be removed: {problem}") from None


class Written(NamedTuple):
    """Result of writing the files.

    Args:
        lines: Places of results, and files that could not be written, a line each.
        missing: The lines of files that could not be written.
    """

    lines: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def write_outputs(outputs: Iterable[Output], result: SessionResult) -> Written:
    """Write every file atomically, so that a reader sees all of it or none; an error in one leaves the others."""
    lines: list[str] = []
    missing: list[str] = []
    for output in outputs:
        try:
            _write(output.path, _renderer(output.form)(result))
        except (UsageProblem, OSError) as problem:
            what = str(problem) if isinstance(problem, UsageProblem) else f"the file cannot be written: {problem}"
        except Exception as problem:  # noqa: BLE001 -- a fault in one form must not cost what hours have measured
            last = traceback.extract_tb(problem.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            what = f"a fault of pytest-gpuserve: {type(problem).__name__} at {where}: {problem}"
        else:
            name = _NAMES.get(output.form, output.flag.partition("=")[0])
            lines.append(f"{name}: {output.path}")
            continue
        missing.append(f"ERROR: {output.flag}: {what}")
        lines.append(missing[-1])
    return Written(tuple(lines), tuple(missing))


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # Names of files may contain bytes that are not characters.
        draft.write_bytes(text.encode("utf-8", "backslashreplace"))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _renderer(form: Form) -> Renderer:
    module, _, name = form.value.partition(":")
    return cast("Renderer", getattr(import_module(module), name))


def _output(config: pytest.Config, flag: str, form: Form, file: str, *, typed: bool) -> Output:
    # By convention, a path on the command line is relative to the working folder, and one in an ini file to that file.
    path = (config.invocation_params.dir if typed else config.rootpath) / os.path.expanduser(file)  # noqa: PTH111 -- pathlib's raises for an unknown ~user
    problem = _unwritable(path)
    if problem:
        raise pytest.UsageError(f"{flag}: {problem}")
    return Output(flag, form, path)


def _unwritable(path: Path) -> str:
    """Reason why a file cannot be written, as far as known beforehand; empty if it can."""
    # The functions of `os` also answer for folders that may not be listed.
    if not os.path.isdir(path.parent):  # noqa: PTH112
        return f"the folder {path.parent} does not exist"
    if os.path.isdir(path):  # noqa: PTH112
        return "this is a folder, not a file"
    # /dev/stdout or a pipe cannot be replaced, and a write through a link is expected to reach its target.
    if os.path.islink(path) or (os.path.lexists(path) and not os.path.isfile(path)):  # noqa: PTH113, PTH114
        return "this is not a plain file: name one that can be replaced"
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return f"the folder {path.parent} is not writable"
    return ""
