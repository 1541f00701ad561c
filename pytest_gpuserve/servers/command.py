"""Any server that a command starts and that has an HTTP port: vLLM, TorchServe, BentoML, a Go binary.

The shortest kind of server, to be copied for a new one.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import NotInRevision, UsageProblem
from pytest_gpuserve.process.secrets import without_secret_values
from pytest_gpuserve.servers.base import Launch, TellsNothing, digests, inherited_environment
from pytest_gpuserve.units import digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpuserve.builds.relocation import Relocation
    from pytest_gpuserve.measure.counters import Counters, ServerSetting
    from pytest_gpuserve.servers.base import Site, Transport
    from pytest_gpuserve.servers.metric_names import MetricNames

PORT: Final = "{port}"
FOLDER: Final = "{folder}"
PYTHON: Final = "{python}"


@dataclass(frozen=True)
class CommandServer(TellsNothing):
    """A command line with a port.

    Args:
        argv: Program and arguments, in which ``{port}`` stands for the port to listen on, ``{folder}`` for a private
            folder and ``{python}`` for the interpreter. There is no shell.
        cwd: Its working folder, that of the test file.
        shown: How that is named in a baseline.
        health: A path that answers 200 when it is up; empty to ask the model at once.
        counters: Names of its Prometheus metrics; None where it has none.
        environment: Variables on top of the inherited ones.
        python: What ``{python}`` stands for.
        default_model: The model that requests are for, of KServe v2 and of OpenAI's API.
        moved_from: The server that this one is in another checkout; both are the same workload.

    Raises:
        UsageProblem: There is no command, or no ``{port}`` in it; or the path to ask is none.
    """

    argv: tuple[str, ...]
    cwd: Path
    shown: str
    python: str
    health: str = ""
    counters: MetricNames | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    default_model: str = ""
    moved_from: CommandServer | None = None
    name: str = field(default="command", init=False)
    ports: tuple[str, ...] = field(default=("http",), init=False)
    transport: Transport = field(default="http", init=False)

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise UsageProblem(
                "command_server takes a program and its arguments as a list of texts",
                found=repr(list(self.argv)),
                remedies=['command_server(["./server", "--port={port}"])'],
            )
        if not self._says(PORT):
            raise UsageProblem(
                "command_server: the server has to be told its port, which is another for each start",
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
        """See ``ServerKind``; by the names that were given, None where there were none."""
        return None if self.counters is None else self.counters.fetch(site)

    def read_settings(self, site: Site) -> Mapping[str, ServerSetting]:
        """See ``ServerKind``; its models, where it is said where they are listed."""
        return {} if self.counters is None else self.counters.read_models(site)

    def workload(self) -> Mapping[str, str]:
        """See ``ServerKind``."""
        if self.moved_from is not None:
            return self.moved_from.workload()
        return {
            "server": self.name,
            "command": " ".join(without_secret_values(self.argv, digest)),
            "folder": self.shown,
            "environment": digests(self.environment),
        }

    def information(self) -> Mapping[str, str]:
        """See ``ServerKind``; where its program was found."""
        program = self.argv[0].replace(PYTHON, self.python)
        return {"program": shutil.which(program) or program}

    def relocated(self, relocation: Relocation) -> CommandServer:
        """See ``ServerKind``; the working folder moves, and with it every relative path.

        Raises:
            NotInRevision: Nothing of it would be another there; or its program is built, and so not in a revision.
            ServerFailed: An interpreter cannot be asked where it imports from.
        """
        self._check_program(relocation)
        inherited = inherited_environment(os.environ)
        # An interpreter that the command does not name makes no other server of it.
        python = relocation.interpreter(self.python) if self._says(PYTHON) else self.python
        moved = replace(
            self,
            argv=tuple(relocation.argument(word, self.cwd) for word in self.argv),
            cwd=relocation.path(self.cwd),
            python=python,
        )
        environment = relocation.environment(self.environment, inherited=inherited, python=self.python, cwd=self.cwd)
        if replace(moved, environment=relocation.telling(environment, self.environment)) == self:
            raise NotInRevision(
                f"nothing of command_server({' '.join(without_secret_values(self.argv))}) would be another on the other"
                " side",
                remedies=[
                    "--against=REV moves files of the checkout: keep the server's program or its files in it",
                    '--against-python=EXE replaces {python}, where python=... is left out: ["{python}", "-m", ...]',
                ],
            )
        return replace(moved, environment=environment, moved_from=self)

    def _check_program(self, relocation: Relocation) -> None:
        """See that the other side has a program of its own: what is built is not in a revision.

        A virtual environment's program is shared on purpose: what it runs is found by the folder and ``PYTHONPATH``.
        """
        program = self.cwd / self.argv[0]
        if "/" not in self.argv[0] or not program.is_file() or (program.parent.parent / "pyvenv.cfg").is_file():
            return
        try:
            relocation.source(program)
        except NotInRevision as problem:
            problem.remedies = (
                *problem.remedies,
                "a built file would be the same on both sides: name a tracked script that builds and runs it",
            )
            raise

    def _says(self, mark: str) -> bool:
        return any(mark in word for word in (*self.argv, *self.environment.values()))

    def _filled(self, word: str, site: Site) -> str:
        for mark, value in ((PORT, str(site.port)), (FOLDER, str(site.folder)), (PYTHON, self.python)):
            word = word.replace(mark, value)
        return word
