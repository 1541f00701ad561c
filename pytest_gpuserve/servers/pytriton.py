"""pytriton (https://triton-inference-server.github.io/pytriton): an app that binds callables to a Triton of its own."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.measure.counters import ServerSetting
from pytest_gpuserve.servers.app import AppServer, read_facts
from pytest_gpuserve.servers.base import inherited_environment, with_own_package
from pytest_gpuserve.servers.inside.pytriton_app import FACTS, MODULE, PORTS
from pytest_gpuserve.servers.triton_api import Roles, read_config, read_statistics, read_version
from pytest_gpuserve.servers.triton_config import used_settings
from pytest_gpuserve.servers.triton_install import find_triton

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.servers.base import Launch, Site

TOKEN_HEADER = "triton-access-token"  # noqa: S105 - the header's name
"""Header of Triton for pytriton's token."""

LIBRARIES = "LD_LIBRARY_PATH"


@dataclass(frozen=True)
class PyTriton(AppServer):
    """A pytriton app with its arguments.

    The fixture overrides the app's addresses, ports and workspace.

    Args:
        app: The app.
        model: Name of the measured model, as the app binds it. Triton answers before any model is bound, so without a
            name the plugin could not tell when the model is ready.

    Raises:
        UsageProblem: The model has no name.
    """

    model: str
    name: str = field(default="pytriton", init=False)
    ports: tuple[str, ...] = field(default=PORTS, init=False)

    def __post_init__(self) -> None:
        if not self.model:
            raise UsageProblem(
                "pytriton_server: model= is empty", remedies=["give the name that the app binds: bind(model_name=...)"]
            )
        object.__setattr__(self, "health", f"{self._path}/ready")
        object.__setattr__(self, "default_model", self.model)

    @property
    def _path(self) -> str:
        return f"/v2/models/{quote(self.model, safe='')}"

    def launch(self, site: Site) -> Launch:
        """See ``ServerKind``.

        Raises:
            ServerFailed: The interpreter has no working Triton.
        """
        install = find_triton(self.app.python)
        before = {**inherited_environment(os.environ), **self.app.environment}.get(LIBRARIES, "")
        libraries = os.pathsep.join(filter(None, (str(install.link_library(site)), before)))
        folder = _folder(site)
        folder.mkdir(mode=0o700)
        return self.app.launch(
            "-m",
            MODULE,
            f"--host={site.host}",
            *(f"--{name}={site.ports[name]}" for name in self.ports),
            f"--folder={folder}",
            str(self.app.file),
            # The stub, which is not in the server's folder, must find this interpreter's libpython before any other.
            environment=with_own_package(site, {**self.app.environment, LIBRARIES: libraries}),
        )

    def read_counters(self, site: Site) -> Counters:
        """See ``ServerKind``; every model of the app is a part."""
        roles = Roles(self.model, self.model, (self.model,))
        return read_statistics(site, roles, headers=self.owner_headers(site))

    def owner_headers(self, site: Site) -> Mapping[str, str]:
        """See ``Guarded``: pytriton protects shared memory, statistics and others with a token."""
        token = _facts(site).token
        return {TOKEN_HEADER: token} if token else {}

    def read_settings(self, site: Site) -> Mapping[str, ServerSetting]:
        """See ``ServerKind``; the requested values are the app's arguments of the same names."""
        headers = self.owner_headers(site)
        used = {**used_settings(read_config(site, self.model, headers=headers)), "pytriton": _facts(site).version}
        asked = self.app.arguments
        return {
            "triton": read_version(site, headers=headers),
            **{
                name: ServerSetting(value, None if asked.get(name) is None else str(asked[name]))
                for name, value in used.items()
            },
        }

    def workload(self) -> Mapping[str, str]:
        """See ``ServerKind``."""
        return {"server": self.name, "model": self.model, **self.app.workload()}


def _folder(site: Site) -> Path:
    return site.folder / "pytriton"


class _Facts(msgspec.Struct):
    """Facts that the app's process wrote about its Triton.

    Args:
        version: The version of nvidia-pytriton.
        token: Token for Triton's protected functions; None if they are open.
    """

    version: str
    token: str | None = None


def _facts(site: Site) -> _Facts:
    return read_facts(
        _folder(site) / FACTS,
        _Facts,
        who="the app's Triton",
        remedy="make pytriton.triton.Triton(...) in the process of the app itself",
    )
