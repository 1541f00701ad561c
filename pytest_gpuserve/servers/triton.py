"""Triton Inference Server (https://github.com/triton-inference-server): a model repository that it serves.

The server is the one in nvidia-pytriton's wheel, whose only backend is Python's. With ``server`` it is another one,
such as that of NVIDIA's container image with all backends, in which pytest then runs.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.builds.interpreter import installed_versions
from pytest_gpuserve.builds.relocation import PYTHONPATH
from pytest_gpuserve.device.host import DEFAULT_DISTRIBUTIONS
from pytest_gpuserve.errors import NotInRevision, UsageProblem
from pytest_gpuserve.measure.counters import ServerSetting
from pytest_gpuserve.process.secrets import without_secret_values
from pytest_gpuserve.servers.base import Launch, TellsNothing, digests, inherited_environment
from pytest_gpuserve.servers.triton_api import read_configs, read_statistics, read_version, roles_of
from pytest_gpuserve.servers.triton_config import Repository, fingerprints, used_settings
from pytest_gpuserve.servers.triton_install import find_triton
from pytest_gpuserve.units import digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpuserve.builds.relocation import Relocation
    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.servers.base import Argument, Site
    from pytest_gpuserve.servers.triton_api import Roles

EXIT_SECONDS: Final = 0
"""Longest wait of Triton for its models at its end, each of which takes more than a second. Their leftovers are removed
in any case, but their ``finalize`` may not run."""

OURS: Final = frozenset(
    {
        "model_repository",
        "model_store",
        "model_control_mode",
        "load_model",
        "backend_directory",
        "exit_timeout_secs",
        "allow_http",
        "http_address",
        "http_port",
        "reuse_http_port",
        "allow_grpc",
        "grpc_address",
        "grpc_port",
        "reuse_grpc_port",
        "allow_metrics",
        "metrics_address",
        "metrics_port",
        "log_file",
        # These open ports of their own, on all addresses.
        "allow_sagemaker",
        "allow_vertex_ai",
    }
)
"""Triton's own options that the fixture sets itself, or that would disable functions that it needs."""

SHM_PREFIX: Final = "shm-region-prefix-name"


@dataclass(frozen=True)
class Triton(TellsNothing):
    """Triton with a model repository.

    Args:
        repository: The folder of the models; Triton serves it from its place.
        shown: Its name in a baseline: relative to the project, so that a checkout may move.
        models: The models to load, with the parts of their ensembles; empty for all.
        model: The model whose batches are counted; None for the one that batches, see `triton_api.choose_roles`.
        asked: The model that requests name; None for the only ensemble, else ``model``.
        arguments: Options of Triton by name: ``http_thread_count=4`` is ``--http-thread-count=4``, True and False are
            ``true`` and ``false``, None is left out.
        extra: Further command line options, unchanged, such as repeated ones or ones without a value.
        environment: Variables for the server on top of the inherited ones. ``PYTHONPATH`` counts for the models too.
        python: The interpreter with nvidia-pytriton and the packages of the models; not used with a server.
        server: The program of another Triton, with backends and a Python of its own; empty for the wheel's.
        cwd: Its working folder, which models may import from; None for the parent of the repository.

    Raises:
        UsageProblem: The repository or model does not exist, or the fixture sets the option itself.
    """

    repository: Path
    shown: str
    models: tuple[str, ...] = ()
    model: str | None = None
    asked: str | None = None
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    server: str = ""
    cwd: Path | None = None
    name: str = field(default="triton", init=False)
    ports: tuple[str, ...] = field(default=("http", "grpc", "metrics"), init=False)
    health: str = field(default="/v2/health/ready", init=False)

    def __post_init__(self) -> None:
        self._check_repository()
        self._check_options()

    @property
    def default_model(self) -> str:
        """See ``ServerKind``: ``asked``, else the only loaded model, the only ensemble, or ``model``."""
        return self.asked or self._repository.main_model(self.models) or self.model or ""

    def launch(self, site: Site) -> Launch:
        """See ``ServerKind``.

        Raises:
            ServerFailed: The interpreter has no working Triton.
        """
        cwd, words = self.cwd or self.repository.parent, self._command_line(site)
        if self.server:
            return Launch((self.server, *words), self.environment, cwd)
        install = find_triton(self.python)
        variables = {**inherited_environment(os.environ), **self.environment}
        backends = install.write_backends(site, searched=variables.get(PYTHONPATH, ""))
        return Launch(
            argv=(str(install.server), f"--backend-directory={backends}", *words),
            environment={**self.environment, **install.environment(variables, install.link_library(site))},
            cwd=cwd,
        )

    def read_counters(self, site: Site) -> Counters:
        """See ``ServerKind``; one request for the statistics of all models."""
        return read_statistics(site, self._roles(site))

    def read_settings(self, site: Site) -> Mapping[str, ServerSetting]:
        """See ``ServerKind``.

        Raises:
            ServerFailed: It did not answer, its answer is invalid, or the counted model is ambiguous.
        """
        self._roles(site)
        settings = {"triton": read_version(site)}
        for name, config in read_configs(site).items():
            settings.update({f"{name}.{key}": ServerSetting(value) for key, value in used_settings(config).items()})
        return settings

    def workload(self) -> Mapping[str, str]:
        """See ``ServerKind``."""
        return {
            "server": self.name,
            "repository": self.shown,
            "models": " ".join(sorted(self.models)) or "all",
            "counted": self.model or "",
            "asked": self.asked or "",
            "arguments": " ".join(without_secret_values(self._flags(), digest)),
            "environment": digests(self.environment),
        }

    def information(self) -> Mapping[str, str]:
        """See ``ServerKind``: a fingerprint of each of the models' files."""
        found = fingerprints(self.repository / name for name in self._repository.models(self.models))
        if self.server:
            found["program"] = shutil.which(self.server) or self.server
        elif self.python != sys.executable:
            versions = installed_versions(self.python, DEFAULT_DISTRIBUTIONS)
            found["interpreter"] = ", ".join(f"{name} {version}" for name, version in versions.items())
        return found

    def relocated(self, relocation: Relocation) -> Triton:
        """See ``ServerKind``; an interpreter of its own stays, weights that git does not track are shared."""
        repository = relocation.path(self.repository)
        missing = [place for name in ("", *self.models) if not (place := repository / name).is_dir()]
        if missing:
            raise NotInRevision(
                f"{relocation.revision} has no {self.shown}" + (" with these models" if self.models else ""),
                looked=[str(place) for place in missing],
                remedies=["a new model cannot be compared, because the other revision does not have it"],
            )
        folder = self.cwd or self.repository.parent
        moved = replace(
            self,
            repository=repository,
            arguments={
                name: relocation.argument(value, folder) if isinstance(value, str) else value
                for name, value in self.arguments.items()
            },
            extra=tuple(relocation.argument(word, folder) for word in self.extra),
            python=self.python if self.server else relocation.interpreter(self.python),
        )
        environment = relocation.environment(
            self.environment, inherited=inherited_environment(os.environ), python=self.python, cwd=folder
        )
        if replace(moved, environment=relocation.telling(environment, self.environment)) == self:
            raise NotInRevision(
                f"triton_server({self.shown}) would be the same in the other build",
                found=f"its model repository is {self.repository}, its interpreter {self.python}",
                remedies=[
                    "--against-python=EXE replaces only the interpreter that runs pytest: leave out python=...",
                    "--against=REV moves only tracked files: the model repository, or a package its models import",
                ],
            )
        return replace(moved, environment=environment, cwd=relocation.path(folder))

    @property
    def _repository(self) -> Repository:
        """The models as Triton reads them, with its last ``--model-config-name``."""
        words = [word for flag in self._flags() for word in flag.split("=", 1)]
        options = [word.removeprefix("--").replace("_", "-") for word in words]
        named = [words[at + 1] for at, option in enumerate(options[:-1]) if option == "model-config-name"]
        return Repository(self.repository, named[-1] if named else "")

    def _command_line(self, site: Site) -> list[str]:
        return [
            f"--model-repository={self.repository}",
            "--model-control-mode=explicit",
            *(f"--load-model={name}" for name in self.models or ("*",)),
            # Triton's own names are the same for all servers, so leftovers could not be attributed.
            f"--backend-config=python,{SHM_PREFIX}={site.folder.name}-",
            *(f"--{name}-address={site.host}" for name in self.ports),
            *(f"--{name}-port={site.ports[name]}" for name in self.ports),
            f"--exit-timeout-secs={EXIT_SECONDS}",
            # Triton's wheel has an old DCGM for them, and the session's own sampler reads the GPU.
            "--allow-gpu-metrics=false",
            *self._flags(),
        ]

    def _check_repository(self) -> None:
        missing = [name for name in self.models if not (self.repository / name).is_dir()]
        if missing:
            there = ", ".join(self._repository.models())
            raise UsageProblem(
                f"triton_server: the model repository has no {', '.join(missing)}",
                found=there or "no model",
                looked=[str(self.repository)],
                remedies=["a model is a folder with config.pbtxt, and a folder 1 with its files"],
            )

    def _check_options(self) -> None:
        words = [word for word in (*self.extra, *(f"--{name}" for name in self.arguments)) if word.startswith("-")]
        given = {word.lstrip("-").partition("=")[0].replace("-", "_") for word in words}
        # Triton also accepts abbreviated names.
        ours = sorted(name for name in given if any(option.startswith(name) for option in OURS))
        if any(SHM_PREFIX in word for word in (*self.extra, *map(str, self.arguments.values()))):
            ours.append(SHM_PREFIX)
        if ours:
            raise UsageProblem(f"triton_server sets {', '.join(ours)} itself", remedies=["leave it out of args="])

    def _flags(self) -> list[str]:
        """Its own options on the command line, those by name in alphabetical order."""
        flags = []
        for name in sorted(self.arguments):
            value = self.arguments[name]
            if value is not None:
                text = str(value).lower() if isinstance(value, bool) else value
                flags.append(f"--{name.replace('_', '-')}={text}")
        return [*flags, *self.extra]

    def _roles(self, site: Site) -> Roles:
        return roles_of(site, model=self.model, asked=self.asked)
