"""The command: recognises an app, asks it once, and writes its suite."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.builds.interpreter import find_python
from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.new.asking import RequestOptions, ask
from pytest_gpuserve.new.files import IGNORED, ignore, suite_files, variable_of, write_missing
from pytest_gpuserve.new.recognise import recognise, recognise_command, suite_name
from pytest_gpuserve.process.command_line import refused, run_command
from pytest_gpuserve.process.secrets import masked, secret_headers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.new.asking import SampleExchange
    from pytest_gpuserve.new.recognise import RecognisedApp


SHOWN_CHARACTERS: Final = 300


def main(arguments: Sequence[str]) -> int:
    """Recognise, ask, write, and return the exit status."""
    words = list(arguments)
    split = words.index("--") if "--" in words else len(words)
    given = _parser().parse_args(words[:split])
    try:
        _make(given, words[split + 1 :])
    except GpuserveError as problem:
        return refused(problem)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_gpuserve.new",
        usage="%(prog)s [options] APP\n       %(prog)s [options] -- COMMAND --port={port}",
        description="Starts an app, asks it once, and writes a suite that gates it, with a workflow.",
        epilog="Exit status: 0, or 2 where the app cannot be used or does not answer. Files that exist are left alone.",
    )
    parser.add_argument("app", nargs="?", type=Path, help="an app's file, or the folder of Triton's model repository")
    parser.add_argument("--name", help="of the suite (default: that of the file)")
    parser.add_argument("--method", help="of the request")
    parser.add_argument("--path", help="of the request")
    body = parser.add_mutually_exclusive_group()
    body.add_argument("--body", help="of the request")
    body.add_argument("--body-file", type=Path, metavar="FILE", help="a file with the request's body")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="of the request")
    parser.add_argument("--model", help="of a pytriton app: the model that is asked")
    parser.add_argument("--python", metavar="EXE", help="the interpreter that has the server's library")
    parser.add_argument("--start-timeout", type=float, default=120.0, metavar="SECONDS", help="until its first answer")
    return parser


def _make(given: argparse.Namespace, argv: Sequence[str]) -> None:
    root = Path.cwd()
    app = _app(given, argv, root)
    question = RequestOptions(given.method, given.path, _body(given), _headers(given.header))
    python = None if given.python is None else find_python(given.python, root, "--python")
    with tempfile.TemporaryDirectory(prefix="gpuserve-new-") as folder:
        log = Path(folder) / "server.log"
        asked = ask(app, question, root=root, log=log, python=python, timeout=given.start_timeout)
    # Only now: an app that does not answer leaves nothing behind.
    written, left = write_missing(suite_files(app, asked, root=root, python=given.python or ""))
    try:
        ignored = ignore(root / ".gitignore", IGNORED)
    except (OSError, ValueError) as problem:
        raise UsageProblem(f"{root / '.gitignore'} cannot be extended", found=str(problem)) from None
    lines = [
        _told(app, asked),
        *(f"wrote {path.relative_to(root)}" for path in written),
        *(["added to .gitignore what tests leave behind"] if ignored else []),
        *(f"left as it is: {path.relative_to(root)}" for path in left),
        *(
            f"set {variable_of(name)} where the test runs: header {name} is a secret, and was not written"
            for name in secret_headers(asked.question.headers)
        ),
        "next:",
        f"  pytest suites/{app.name} --baseline-update   # records what it does now; later runs are gated by it",
        f"  pytest suites/{app.name} --against=HEAD      # once it is committed: compares your changes side by side",
    ]
    print(masked("\n".join(lines)))  # noqa: T201 -- a command


def _app(given: argparse.Namespace, argv: Sequence[str], root: Path) -> RecognisedApp:
    if (given.app is None) == (not argv):
        raise UsageProblem(
            "name one app, or one command",
            found="both" if argv else "neither",
            remedies=[
                "python -m pytest_gpuserve.new app.py",
                "python -m pytest_gpuserve.new -- python app.py --port={port}",
            ],
        )
    app = recognise_command(argv, root) if argv else recognise((root / given.app).resolve())
    if given.model:
        app = replace(app, model=given.model)
    return replace(app, name=suite_name(given.name)) if given.name else app


def _body(given: argparse.Namespace) -> bytes | None:
    if given.body_file is None:
        return None if given.body is None else str(given.body).encode()
    try:
        content: bytes = given.body_file.read_bytes()
    except OSError as problem:
        raise UsageProblem(f"--body-file={given.body_file} cannot be read", found=str(problem)) from None
    return content


def _headers(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise UsageProblem(f"--header={text!r} is no header", remedies=["--header='Content-Type: text/plain'"])
        found[name.strip()] = value.strip()
    return found


def _told(app: RecognisedApp, asked: SampleExchange) -> str:
    question = asked.question
    body = asked.body[:SHOWN_CHARACTERS].decode(errors="replace")
    more = f" ... ({len(asked.body)} bytes)" if len(asked.body) > SHOWN_CHARACTERS else ""
    sent = f" with {question.body[:SHOWN_CHARACTERS].decode(errors='replace')}" if question.body else ""
    return f"{app.kind}: {question.method} {question.path}{sent}\nanswered: {body}{more}"


if __name__ == "__main__":
    sys.exit(run_command(main))
