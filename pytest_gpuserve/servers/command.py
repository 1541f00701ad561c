"""Any server that a command starts and that has an HTTP port: vLLM, TorchServe, BentoML, a Go binary.

The shortest kind of server, to be copied for a new one.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import NotInRevision, UsageProblem
from pytest_gpuserve.servers.base import Launch
from pytest_gpuserve.servers.inherited import inherited_environment
from pytest_gpuserve.servers.prometheus import scrape
from pytest_gpuserve.units import digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.measure.settings import Setting
    from pytest_gpuserve.servers.base import Site, Transport
    from pytest_gpuserve.servers.metric_names import MetricNames
    from pytest_gpuserve.servers.relocation import Relocation

PORT: Final = "{port}"
FOLDER: Final = "{folder}"
PYTHON: Final = "{python}"


@dataclass(frozen=True)
class CommandServer:
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
        default_model: Of KServe v2, the model that an inference is for.
        moved_from: The server that this one is in another checkout; both are the same workload.

    Raises:
        UsageProblem: There is no command, or no ``{port}`` in it.
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
        if not self.argv or not all(self.argv):
            raise UsageProblem(
                "command_server takes a program and its arguments as a list of texts",
                found=repr(self.argv),
                remedies=['command_server(["./server", "--port={port}"])'],
            )
        if not any(PORT in word for word in (*self.argv, *self.environment.values())):
            raise UsageProblem(
                "command_server: the server has to be told its port, which is another for each start",
                found=" ".join(self.argv),
                remedies=['write {port} where the port belongs: "--port={port}", or env={"PORT": "{port}"}'],
            )

    def launch(self, site: Site) -> Launch:
        """See ``ServerKind``."""
        filled = [self._filled(word, site) for word in self.argv]
        beside = self.cwd / filled[0]
        if "/" in filled[0] and beside.is_file():
            filled[0] = str(beside)
        return Launch(
            argv=tuple(filled),
            environment={name: self._filled(value, site) for name, value in self.environment.items()},
            cwd=self.cwd,
        )

    def read_counters(self, site: Site) -> Counters | None:
        """See ``ServerKind``; by the names that were given, None where there were none."""
        if self.counters is None:
            return None
        return self.counters.read(scrape(site.port, self.counters.path))

    def read_settings(self, site: Site) -> Mapping[str, Setting]:
        """See ``ServerKind``; of just any server nothing is known."""
        del site
        return {}

    def read_cold_start(self, site: Site) -> Mapping[str, float]:
        """See ``ServerKind``; of just any server nothing is known."""
        del site
        return {}

    def workload(self) -> Mapping[str, str]:
        """See ``ServerKind``."""
        if self.moved_from is not None:
            return self.moved_from.workload()
        return {
            "server": self.name,
            "command": " ".join(self.argv),
            "folder": self.shown,
            "environment": " ".join(f"{name}={digest(self.environment[name])}" for name in sorted(self.environment)),
        }

    def information(self) -> Mapping[str, str]:
        """See ``ServerKind``; where its program was found."""
        program = self.argv[0].replace(PYTHON, self.python)
        return {"program": shutil.which(program) or program}

    def relocated(self, relocation: Relocation) -> CommandServer:
        """See ``ServerKind``; the working folder moves, and with it every relative path.

        Raises:
            NotInRevision: Nothing of it lies in the checkout.
        """
        inherited = inherited_environment(os.environ)
        moved = replace(
            self,
            argv=tuple(relocation.argument(word, self.cwd) for word in self.argv),
            cwd=relocation.path(self.cwd),
            python=relocation.interpreter(self.python),
        )
        environment = relocation.environment(self.environment, inherited=inherited, python=self.python, cwd=self.cwd)
        telling = {name: value for name, value in environment.items() if name in self.environment}
        if replace(moved, environment=telling) == self:
            raise NotInRevision(
                f"nothing of command_server({' '.join(self.argv)}) would be another on the other side",
                remedies=[
                    "--against=REV moves what lies in the checkout: keep the server's program or its files in it"
                ],
            )
        return replace(moved, environment=environment, moved_from=self)

    def _filled(self, word: str, site: Site) -> str:
        for mark, value in ((PORT, str(site.port)), (FOLDER, str(site.folder)), (PYTHON, self.python)):
            word = word.replace(mark, value)
        return word
