"""Runs a LitServe app unchanged: on a given port, with its batches and its answers counted.

``python -m pytest_gpuserve.servers.inside.litserve_app --port=PORT --folder=FOLDER APP [ARGUMENT...]``

Batches are counted in each of its workers, answers by a middleware in each of its HTTP processes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.metadata
import inspect
import sys
from pathlib import Path
from typing import Any, Final

from pytest_gpuserve.servers.inside.as_main import run_as_main
from pytest_gpuserve.servers.inside.litserve_worker import FACTS, AnswerCounter, WorkerCallback, is_counted
from pytest_gpuserve.servers.inside.tally import write_facts

MODULE: Final = "pytest_gpuserve.servers.inside.litserve_app"


def prepare(litserve: Any, *, host: str, port: int, folder: Path) -> None:  # noqa: ANN401 - see `main`
    """Make each ``LitServer`` count, and run on the given port.

    Its methods are replaced in place, because apps subclass and pickle the class, and check for it.

    Args:
        folder: Folder of facts and tallies.
    """
    server_class = litserve.LitServer
    litserve.Callback.register(WorkerCallback)
    init, run = server_class.__init__, server_class.run

    @functools.wraps(init)
    def counting_init(server: Any, *args: Any, callbacks: Any = None, **more: Any) -> None:  # noqa: ANN401
        given = [] if callbacks is None else callbacks if isinstance(callbacks, list) else [callbacks]
        init(server, *args, callbacks=[*given, WorkerCallback(folder)], **more)

    @functools.wraps(run)
    def moved_run(server: Any, *args: Any, **more: Any) -> None:  # noqa: ANN401
        asked = inspect.signature(run).bind(server, *args, **more).arguments
        asked.pop("self")
        extra = {"access_log": False, **asked.pop("kwargs", {})}
        options = {**asked, **extra, "host": host, "port": port, "generate_client_file": False}
        apis = list(server.litapi_connector)
        facts = {
            "version": importlib.metadata.version("litserve"),
            "server": _server_facts(server, options),
            "apis": {api.api_path: _api_facts(server, api) for api in apis},
        }
        write_facts(folder / FACTS, facts)
        server.app.add_middleware(
            AnswerCounter,
            folder=folder,
            paths={asked_at: api.api_path for api in apis for asked_at in _http_paths(api)},
            states=lambda: dict(server.workers_setup_status),
        )
        run(server, **options)

    server_class.__init__ = counting_init
    server_class.run = moved_run
    with contextlib.suppress(ImportError, AttributeError):
        queues: Any = importlib.import_module("litserve.transport.zmq_queue")
        queues.generate_random_zmq_address = functools.partial(queues.generate_random_zmq_address, str(folder))


def _http_paths(lit_api: Any) -> list[str]:  # noqa: ANN401 - LitServe is not imported here
    """HTTP paths of an API: its own path, or those of its spec."""
    return [path for path, _, _ in lit_api.spec.endpoints] if lit_api.spec else [lit_api.api_path]


def _server_facts(server: Any, options: dict[str, Any]) -> dict[str, object]:  # noqa: ANN401
    """Settings of the server that hold for all its APIs."""
    workers = sum(_workers_of(server, lit_api) for lit_api in server.litapi_connector)
    devices = [",".join(device) if isinstance(device, list) else device for device in server.devices]
    return {
        "devices": " ".join(map(str, devices)),
        "timeout": server.timeout,
        "fast_queue": server.use_zmq,
        "restart_workers": server.restart_workers,
        "num_api_servers": options.get("num_api_servers") or workers,
    }


def _workers_of(server: Any, lit_api: Any) -> int:  # noqa: ANN401 - LitServe is not imported here
    """Number of workers of an API."""
    return len(server._inference_workers_config_for_api(lit_api.api_path))  # noqa: SLF001 - told nowhere else


def _api_facts(server: Any, lit_api: Any) -> dict[str, object]:  # noqa: ANN401 - LitServe is not imported here
    """Settings of one of its APIs."""
    return {
        "max_batch_size": lit_api.max_batch_size,
        "batch_timeout": lit_api.batch_timeout,
        "workers": _workers_of(server, lit_api),
        "stream": lit_api.stream,
        "loop": type(lit_api.loop).__name__,
        "counted": is_counted(lit_api),
        "spec": None if lit_api.spec is None else type(lit_api.spec).__name__,
    }


def main() -> None:
    """Run the app."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("app", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    try:
        litserve = importlib.import_module("litserve")
    except ModuleNotFoundError as missing:
        sys.exit(
            f"litserve_server: {sys.executable} cannot import {missing.name}: install litserve there, or name the"
            " interpreter that has it: python=..."
        )
    prepare(litserve, host=options.host, port=options.port, folder=options.folder)
    sys.argv[0] = str(options.app)
    run_as_main(options.app, options.arguments, scratch=options.folder)


if __name__ == "__main__":
    main()
