"""Runs a pytriton app unchanged: on given ports, its files in a given folder, and its access token known.

``python -m pytest_gpuserve.servers.inside.pytriton_app --http=PORT --grpc=PORT --metrics=PORT --folder=FOLDER APP ...``

pytriton takes ports from variables, but the app's own ports take precedence. Triton reports its batches only with a
token, which pytriton invents at each start and does not reveal.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import importlib.metadata
import sys
from pathlib import Path
from typing import Any, Final

from pytest_gpuserve.servers.inside.as_main import run_as_main
from pytest_gpuserve.servers.inside.tally import write_facts

FACTS: Final = "server.json"
"""File with the server's setup; it holds the token, so only its owner may read it."""

MODULE: Final = "pytest_gpuserve.servers.inside.pytriton_app"

PORTS: Final = ("http", "grpc", "metrics")

EXIT_SECONDS: Final = 2
"""Longest wait of Triton for its models at its end; its default of 30 s exceeds the time that a server may take to
stop."""


ELSEWHERE: Final = ("allow_sagemaker", "allow_vertex_ai")
"""Options with ports of their own, on all addresses; if Triton cannot open these, pytriton may wait two minutes."""


def prepare(triton: Any, *, host: str, ports: dict[str, int], folder: Path) -> None:  # noqa: ANN401 - see `main`
    """Make each ``Triton`` run on the given ports.

    Its method is replaced in place, so that apps find the class they know. HTTP, gRPC and metrics are all on, because
    unused ports cost nothing.

    Args:
        folder: Folder of facts and of pytriton's workspace.
    """
    server_class = triton.Triton
    init = server_class.__init__

    @functools.wraps(init)
    def moved_init(server: Any, *, config: Any = None, workspace: Any = None, **more: Any) -> None:  # noqa: ANN401
        # Triton's wheel has an old DCGM for its GPU metrics, and the session's own sampler reads the GPU.
        options: dict[str, object] = {"exit_timeout_secs": EXIT_SECONDS, "allow_gpu_metrics": False}
        for name, port in ports.items():
            options |= {f"allow_{name}": True, f"{name}_address": host, f"{name}_port": port}
        if workspace is None or isinstance(workspace, (str, Path)):
            workspace = folder / "workspace"
        moved = dataclasses.replace(config or triton.TritonConfig(), **options)
        if moved.model_repository is None:
            # Models for Triton are stored in /tmp/folder...; a killed process leaves them there.
            policy = more.get("triton_lifecycle_policy") or triton.TritonLifecyclePolicy()
            more["triton_lifecycle_policy"] = dataclasses.replace(policy, local_model_store=True)
        init(server, config=moved, workspace=workspace, **more)
        for name in ELSEWHERE:
            if getattr(server._config, name, None):  # noqa: SLF001 - told nowhere else
                sys.exit(f"pytriton_server: leave out {name}: it would listen on all addresses of this machine")
        facts = {
            "version": importlib.metadata.version("nvidia-pytriton"),
            "token": server.get_access_token() if hasattr(server, "get_access_token") else None,
        }
        write_facts(folder / FACTS, facts)

    server_class.__init__ = moved_init


def main() -> None:
    """Run the app."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    for name in PORTS:
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("app", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    ports = {name: getattr(options, name) for name in PORTS}
    triton = importlib.import_module("pytriton.triton")
    prepare(triton, host=options.host, ports=ports, folder=options.folder)
    sys.argv[0] = str(options.app)
    run_as_main(options.app, options.arguments, scratch=options.folder)


if __name__ == "__main__":
    main()
