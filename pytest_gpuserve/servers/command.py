"""Any server that a command starts and that has an HTTP port: vLLM, TorchServe, BentoML, a Go binary.

This is the shortest kind of server, and a template for a new one.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.builds.interpreter import imported_by, interpreter_of
from pytest_gpuserve.builds.relocation import PYTHONPATH
from pytest_gpuserve.errors import NotInRevision, UsageProblem
from pytest_gpuserve.process.secrets import without_secret_values
from pytest_gpuserve.servers.base import Launch, TellsNothing, digests, inherited_environment
from pytest_gpuserve.units import digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpuserve.builds.relocation import Relocation
    from pytest_gpuserve.measure.counters import Counters, ServerSetting
    from pytest_gpuserve.servers.base import Site
    from pytest_gpuserve.servers.metric_names import MetricNames

PORT: Final = "{port}"
FOLDER: Final = "{folder}"
PYTHON: Final = "{python}"


@dataclass(frozen=True)
class CommandServer(TellsNothing):
    """A command line with a port.

    Args:
        argv: Program and arguments, without a shell. ``{port}`` is replaced by the port to listen on, ``{folder}`` by a
            private folder and ``{python}`` by the interpreter.
        cwd: Its working folder, that of the test file.
        shown: Name of that folder in a baseline.
        health: A path that answers 200 when it is up; empty to try the model at once.
        counters: Names of its Prometheus metrics, or None.
        environment: Variables on top of the inherited ones.
        python: Replacement of ``{python}``.
        default_model: The model of requests, for KServe v2 and OpenAI's API.

    Raises:
        UsageProblem: The command is empty or has no ``{port}``, or ``health`` is not a path.
    """

    argv: tuple[str, ...]
    cwd: Path
    shown: str
    python: str
    health: str = ""
    counters: MetricNames | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    default_model: str = ""
    name: str = field(default="command", init=False)
    ports: tuple[str, ...] = field(default=("http",), init=False)

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise UsageProblem(
                "command_server takes a program and its arguments as a list of texts",
                found=repr(list(self.argv)),
                remedies=['command_server(["./server", "--port={port}"])'],
            )
        if not self._says(PORT):
            raise UsageProblem(
                "command_server: the command has to contain its port, which differs in each start",
                found=" ".join(without_secret_values(self.argv)),
                remedies=['write {port} where the port belongs: "--port={port}", or env={"PORT": "{port}"}'],
            )
        if self.health and not self.health.startswith("/"):
            raise UsageProblem(
                f"command_server(ready={self.health!r}): a path begins with a slash", remedies=['ready="/health"']
            )

    def launch(self, site: Site) -> Launch:
        """See ``ServerKind``."""
        return Launch(
            argv=tuple(self._filled(word, site) for word in self.argv),
            environment={name: self._filled(value, site) for name, value in self.environment.items()},
            cwd=self.cwd,
        )

    def read_counters(self, site: Site) -> Counters | None:
        """See ``ServerKind``; by the given names, None without names."""
        return None if self.counters is None else self.counters.fetch(site)

    def read_settings(self, site: Site) -> Mapping[str, ServerSetting]:
        """See ``ServerKind``; its models, if their list is named."""
        return {} if self.counters is None else self.counters.read_models(site)

    def workload(self) -> Mapping[str, str]:
        """See ``ServerKind``."""
        return {
            "server": self.name,
            "command": " ".join(without_secret_values(self.argv, digest)),
            "folder": self.shown,
            "environment": digests(self.environment),
        }

    def information(self) -> Mapping[str, str]:
        """See ``ServerKind``; the place of its program."""
        program = self.argv[0].replace(PYTHON, self.python)
        return {"program": shutil.which(program) or program}

    def relocated(self, relocation: Relocation) -> CommandServer:
        """See ``ServerKind``; the working folder moves, and with it every relative path.

        Raises:
            NotInRevision: The server would be the same there; or its program is built, and so not in a revision.
            ServerFailed: The import paths of an interpreter are unknown.
        """
        self._check_program(relocation)
        inherited = inherited_environment(os.environ)
        # Another interpreter does not change a command that does not name it.
        python = relocation.interpreter(self.python) if self._says(PYTHON) else self.python
        moved = replace(
            self,
            argv=tuple(relocation.argument(word, self.cwd) for word in self.argv),
            cwd=relocation.folder(self.cwd),
            python=python,
        )
        program = self._program({**inherited, **self.environment})
        is_shared = relocation.text(program) == program
        environment = relocation.environment(
            self.environment,
            inherited=inherited,
            python=interpreter_of(program) or self.python,
            cwd=self.cwd,
            words=(*self.argv, *(imported_by(program) if is_shared else ())),
        )
        ignores = [word for word in self.argv[1:2] if re.fullmatch(r"-[a-zA-Z]*[EI][a-zA-Z]*", word)]
        is_moved = relocation.worktree is not None and environment.get(PYTHONPATH, "") != ""
        if is_moved and ignores and interpreter_of(program) == program:
            raise NotInRevision(
                f"python {ignores[0]} ignores PYTHONPATH, so {relocation.revision} would import this checkout's code",
                found=environment[PYTHONPATH],
                remedies=["leave out -E and -I"],
            )
        if replace(moved, environment=relocation.telling(environment, self.environment)) == self:
            raise NotInRevision(
                f"command_server({' '.join(without_secret_values(self.argv))}) would be the same in the other build",
                remedies=[
                    "--against=REV moves files of the checkout: keep the server's program or its files in it",
                    '--against-python=EXE replaces {python}, where python=... is left out: ["{python}", "-m", ...]',
                ],
            )
        return replace(moved, environment=environment)

    def _program(self, environment: Mapping[str, str]) -> str:
        """Path of its program, or its name if it is not found."""
        name = self.argv[0].replace(PYTHON, self.python)
        return str(self.cwd / name) if "/" in name else shutil.which(name, path=environment.get("PATH")) or name

    def _check_program(self, relocation: Relocation) -> None:
        """Check that the other build has its own program: a built file is not in a revision.

        A virtual environment's program is shared on purpose: the folder and ``PYTHONPATH`` decide what it runs.
        """
        program = self.cwd / self.argv[0]
        if "/" not in self.argv[0] or not program.is_file() or (program.parent.parent / "pyvenv.cfg").is_file():
            return
        try:
            relocation.source(program)
        except NotInRevision as problem:
            problem.remedies = (
                *problem.remedies,
                "a built file would be the same in both builds: name a tracked script that builds and runs it",
            )
            raise

    def _says(self, mark: str) -> bool:
        return any(mark in word for word in (*self.argv, *self.environment.values()))

    def _filled(self, word: str, site: Site) -> str:
        for mark, value in ((PORT, str(site.port)), (FOLDER, str(site.folder)), (PYTHON, self.python)):
            word = word.replace(mark, value)
        return word
