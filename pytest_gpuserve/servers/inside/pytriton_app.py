"""Runs a pytriton app unchanged: on given ports, its files in a given folder, and its access token known.

``python -m pytest_gpuserve.servers.inside.pytriton_app --http=PORT --grpc=PORT --metrics=PORT --folder=FOLDER APP ...``

pytriton takes ports from variables, but what the app says comes first; the token, without which Triton tells nothing
of its batches, is made up at each start and said nowhere.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import importlib.metadata
import sys
import time
from pathlib import Path
from typing import Any, Final

from pytest_gpuserve.servers.inside.as_main import run_as_main
from pytest_gpuserve.servers.inside.facts import write_facts

FACTS: Final = "server.json"
"""File in which the server says how it was set up; it has the token, so it is for its owner alone."""

MODULE: Final = "pytest_gpuserve.servers.inside.pytriton_app"

PORTS: Final = ("http", "grpc", "metrics")

EXIT_SECONDS: Final = 2
"""How long Triton waits for its models at its end; its own default of 30 s is longer than a server may take to stop."""

ELSEWHERE: Final = ("allow_sagemaker", "allow_vertex_ai")
"""Options that open ports of their own, on all addresses."""


def prepare(triton: Any, *, host: str, ports: dict[str, int], folder: Path, began: float) -> None:  # noqa: ANN401 - see `main`
    """Let each ``Triton`` run there; its methods are replaced in place, so that it stays the class that an app knows.

    HTTP, gRPC and metrics are all on: on ports of their own, where nobody asks them, they cost nothing.

    Args:
        folder: Where facts and pytriton's workspace go.
        began: By `time.perf_counter`, when this program did.
    """
    server_class = triton.Triton
    init, connect = server_class.__init__, server_class.connect

    @functools.wraps(init)
    def moved_init(server: Any, *, config: Any = None, workspace: Any = None, **more: Any) -> None:  # noqa: ANN401
        began_triton = time.perf_counter()
        # Triton's wheel carries an old DCGM for its GPU metrics, and the session's own sampler reads the GPU.
        options: dict[str, object] = {"exit_timeout_secs": EXIT_SECONDS, "allow_gpu_metrics": False}
        for name, port in ports.items():
            options |= {f"allow_{name}": True, f"{name}_address": host, f"{name}_port": port}
        if workspace is None or isinstance(workspace, (str, Path)):
            workspace = folder / "workspace"
        moved = dataclasses.replace(config or triton.TritonConfig(), **options)
        if moved.model_repository is None:
            # Models that are sent to Triton lie in /tmp/folder...; a killed one leaves them there.
            policy = more.get("triton_lifecycle_policy") or triton.TritonLifecyclePolicy()
            more["triton_lifecycle_policy"] = dataclasses.replace(policy, local_model_store=True)
        init(server, config=moved, workspace=workspace, **more)
        for name in ELSEWHERE:
            if getattr(server._config, name, None):  # noqa: SLF001 - told nowhere else
                sys.exit(f"pytriton_server: leave out {name}: it would listen on all addresses of this machine")
        facts = {
            "version": importlib.metadata.version("nvidia-pytriton"),
            "token": server.get_access_token() if hasattr(server, "get_access_token") else None,
            "import_seconds": began_triton - began,
        }
        write_facts(folder / FACTS, facts)
        server.gpuserve = (facts, began_triton)

    @functools.wraps(connect)
    def timed_connect(server: Any) -> None:  # noqa: ANN401 - pytriton is not imported here
        connect(server)
        facts, began_triton = server.gpuserve
        if "triton_seconds" not in facts:
            facts["triton_seconds"] = time.perf_counter() - began_triton
            write_facts(folder / FACTS, facts)

    server_class.__init__ = moved_init
    server_class.connect = timed_connect


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
    began = time.perf_counter()
    ports = {name: getattr(options, name) for name in PORTS}
    triton = importlib.import_module("pytriton.triton")
    prepare(triton, host=options.host, ports=ports, folder=options.folder, began=began)
    sys.argv[0] = str(options.app)
    run_as_main(options.app, options.arguments, scratch=options.folder)


if __name__ == "__main__":
    main()
