"""The command: recognises an app, asks it once, and writes its suite."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.builds.interpreter import find_python
from pytest_gpuserve.device.gpu import CPU, RESERVED_NAMES, device_name
from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.load.__main__ import headers_of, read_bytes
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.new.app import COMMAND, ask, recognise, recognise_command, suite_name
from pytest_gpuserve.new.files import suite_files, variable_of, write_missing
from pytest_gpuserve.process.command_line import refused, run_command
from pytest_gpuserve.process.secrets import masked, secret_headers
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.new.app import App

_SHOWN: Final = 300  # characters
_LABELS: Final = re.compile(r"[\w.-]+(,[\w.-]+)*")


def main(arguments: Sequence[str]) -> int:
    """Recognise, ask, write, and return the exit status."""
    words = list(arguments)
    split = words.index("--") if "--" in words else len(words)
    given = _parser().parse_args(words[:split])
    try:
        app = _app(given, words[split + 1 :], Path.cwd())
        print(masked("\n".join(_made(given, app, Path.cwd()))))  # noqa: T201 -- a command
    except GpuserveError as problem:
        return refused(problem)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        usage="%(prog)s [options] APP\n       %(prog)s [options] -- COMMAND --port={port}",
        description="Starts an app, sends it one request, and writes a suite that gates it, and GitHub workflows.",
        epilog="Exit status: 0, or 2 if the app cannot be used or does not answer. Existing files are not changed.",
    )
    parser.add_argument("app", nargs="?", type=Path, help="an app's file, or the folder of Triton's model repository")
    parser.add_argument("--name", help="name of the suite (default: that of the file)")
    for name in ("--method", "--path"):
        parser.add_argument(name, help="of the request")
    parser.add_argument("--body", metavar="TEXT|@FILE", help="of the request")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="of the request")
    parser.add_argument("--model", help="pytriton app: the model of the request")
    parser.add_argument("--python", metavar="EXE", help="the interpreter that has the server's library")
    parser.add_argument("--gpu-runner", metavar="LABELS", help="labels of a GPU runner, such as self-hosted,gpu")
    parser.add_argument("--gpu", metavar="NAME", help="that runner's GPU, as pytest_gpuserve.doctor prints it there")
    parser.add_argument(
        "--start-timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="most time until the app answers (default: 120)",
    )
    return parser


def _app(given: argparse.Namespace, argv: Sequence[str], root: Path) -> App:
    if (given.app is None) == (not argv):
        found = "both" if argv else "neither"
        raise UsageProblem("name one app, or one command", found=found, remedies=[f"{COMMAND} --help"])
    app = recognise_command(argv, root) if argv else recognise((root / given.app).resolve())
    target = "" if given.path and given.body is not None else app.target
    return replace(app, model=given.model or app.model, name=suite_name(given.name or app.name), target=target)


def _made(given: argparse.Namespace, app: App, root: Path) -> list[str]:
    """Ask, write, and say what was done."""
    naming = "on the runner, this prints the name: python -m pytest_gpuserve.doctor"
    if (given.gpu_runner is None) != (given.gpu is None):
        raise UsageProblem("--gpu-runner=LABELS and --gpu=NAME belong together", remedies=[naming])
    if given.gpu_runner is not None and not _LABELS.fullmatch(given.gpu_runner):
        remedies = ["separate them by commas: --gpu-runner=self-hosted,gpu"]
        raise UsageProblem("the runner's labels cannot be written", found=repr(given.gpu_runner), remedies=remedies)
    if given.gpu is not None and given.gpu not in {CPU, device_name(given.gpu)}:
        remedies = [naming] if given.gpu.lower() in RESERVED_NAMES else [f"--gpu={device_name(given.gpu)}", naming]
        raise UsageProblem("--gpu is not the name of a GPU in baselines", found=repr(given.gpu), remedies=remedies)
    headers, body = headers_of(given.header), None
    if given.body is not None:
        body = read_bytes(Path(given.body[1:]), "--body") if given.body.startswith("@") else given.body.encode()

    def over(default: Request) -> Request:
        """The user's values override those for the app's kind; a body is JSON only if it looks like it."""
        sent = default.body if body is None else body
        is_json = sent and (body is None or body.lstrip()[:1] in {b"{", b"["})
        known = (default.headers or {"Content-Type": "application/json"}) if is_json else {}
        method = given.method or ("POST" if sent else default.method)
        return Request(method.upper(), given.path or default.path, sent, {**known, **headers})

    python = None if given.python is None else find_python(given.python, root, "--python")
    # An app that never answers would otherwise be waited for in silence.
    limit = f"within {format_seconds(given.start_timeout)} (--start-timeout)"
    print(f"starting {app.name}, which must answer {limit} ...", file=sys.stderr)  # noqa: T201 -- a command
    log, is_kept = Path(tempfile.mkdtemp(prefix="gpuserve-new-")) / "server.log", False
    try:
        asked = ask(app, over, given.path, log=log, python=python, timeout=given.start_timeout)
    except GpuserveError:
        # The error tells the user to read it.
        is_kept = log.is_file()
        raise
    finally:
        if not is_kept:
            shutil.rmtree(log.parent, ignore_errors=True)
    # Only now: an app that does not answer leaves no files.
    runner = (given.gpu_runner, given.gpu) if given.gpu else None
    written, left = write_missing(suite_files(app, asked, root=root, python=given.python or "", runner=runner))
    request, (answer, _) = asked.request, asked.answers
    sent = f" with {request.body[:_SHOWN].decode(errors='replace')}" if request.body else ""
    return [
        *([f"the request is a guess: {asked.untold}"] if asked.untold else ()),
        f"{app.kind}: {request.method} {request.path}{sent}",
        f"answered: {answer[:_SHOWN].decode(errors='replace')}"
        + (f" ... ({len(answer)} bytes)" if len(answer) > _SHOWN else ""),
        *(f"wrote {path.relative_to(root)}" for path in written),
        *(f"left as it is: {path.relative_to(root)}" for path in left),
        *(
            f"set {variable_of(name)} where the test runs: header {name} is a secret, and was not written"
            for name in secret_headers(request.headers)
        ),
        "next:",
        f"  pytest suites/{app.name} --against=HEAD      # once it is committed: compares your changes side by side",
        f"  pytest suites/{app.name} --baseline-update   # records what it does now; later runs are gated by it",
        *(
            f"  in {path.relative_to(root)}, let pip install your app's packages and the plugin, which no index has yet"
            for path in written
            if path.suffix == ".yml" and path.stem != "post-comment"  # which installs nothing
        ),
    ]


if __name__ == "__main__":
    sys.exit(run_command(main))
