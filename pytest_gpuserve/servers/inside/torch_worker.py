"""The torch worker's process: a model behind an HTTP port, and the parts of its start.

``python -m pytest_gpuserve.servers.inside.torch_worker OPTIONS``, where `Options` are JSON.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
import time
import traceback
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.servers.inside.tally import MOST_SIZES, Tally, write_facts
from pytest_gpuserve.servers.inside.torch_http import HttpServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TALLY_FILE: Final = "torch-worker.tally"
FACTS_FILE: Final = "torch-worker.json"
"""Files in the worker's folder: counters, and ``{"cold_start": {PART: SECONDS}, "settings": {NAME: TEXT}}``."""

COUNTED: Final = (
    "answered",
    "server_ns",
    "queue_ns",
    "compute_ns",
    "executions",
    "executed",
    "items",
    "compiling_ns",
    "compiling",
    "frames",
    "graphs",
    "breaks",
)
"""Fields of the tally: requests that were answered well; sums of the stages' times; executions, with their requests
and rows; executions that compiled something; dynamo's compilations."""

IMPORT: Final = "import torch"
BUILD: Final = "build model"
LOAD: Final = "load weights"
COMPILE_CALL: Final = "compile call"
FIRST_REQUEST: Final = "first request"
"""Parts of a cold start. `COMPILE_CALL` contains only the imports, because the call returns at once; compilation is
part of `FIRST_REQUEST`."""


SWITCH_SECONDS: Final = 0.0003
"""Longest wait of a thread for Python's lock. The default of 5 ms is longer than many models take: with it, a worker
without a model's time answered 8 users half as many requests a second."""


@dataclass(frozen=True)
class Options:
    """Options of a worker: those of `TorchWorker`, with empty texts for values that are None there.

    Args:
        model: The file with the callable.
        arguments: Keyword arguments of the callable.
        folder: Place of the counters and facts.
        compile_backend: Backend of ``torch.compile``; empty for a model that is not compiled.
    """

    model: str
    callable: str
    arguments: dict[str, object]
    folder: str
    host: str
    port: int
    device: str
    seed: int
    weights: str
    compile_backend: str
    compile_mode: str
    workers: int
    max_batch_size: int
    max_wait_ms: float


def main() -> None:
    """Serve until a signal; a failed start, or the end of a device, writes its reason to stderr and exits with 1."""
    options = Options(**json.loads(sys.argv[1]))
    sys.setswitchinterval(SWITCH_SECONDS)
    parts: dict[str, float] = {}
    failed = "the model did not start"
    try:
        run = _start(options, parts)
        failed = "the worker ended under load"
        run()
    except GpuserveError as problem:
        _give_up(str(problem))
    except BaseException as problem:  # noqa: BLE001 -- whatever the user's file or the device raised
        traceback.print_exc()
        _give_up(f"torch_worker: {failed}: {type(problem).__name__}: {problem}")


def _start(options: Options, parts: dict[str, float]) -> Callable[[], None]:
    """Load the model and listen; return the function that executes requests until the process ends."""
    with _timed(parts, IMPORT):
        import torch  # noqa: PLC0415 -- timed
    # Their imports include torch.
    from pytest_gpuserve.servers.inside.torch_model import (  # noqa: PLC0415
        Execution,
        built_model,
        fill,
        load_callable,
        parameter_facts,
        parameter_names,
    )
    from pytest_gpuserve.servers.inside.torch_service import (  # noqa: PLC0415
        GraphShapes,
        Service,
        uses_cuda_graphs,
        vital,
    )

    # Bytes of requests are only read.
    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    device = torch.device(options.device)
    folder, file = Path(options.folder), Path(options.model)
    sys.path.insert(0, str(file.parent))
    with _timed(parts, BUILD):
        model = built_model(load_callable(file, options.callable), options.arguments, options.seed)
    with _timed(parts, LOAD):
        if options.weights:
            fill(model, Path(options.weights), device)
        model = model.eval().to(device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    names = parameter_names(model)
    settings = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
        "float32 matmul": str(torch.get_float32_matmul_precision()),
        **parameter_facts(model),
    }
    if options.compile_backend:
        with _timed(parts, COMPILE_CALL):
            # Not module.compile(), which does not compile torch's own containers, such as Sequential.
            model = torch.compile(model, backend=options.compile_backend, mode=options.compile_mode or None)
    records = uses_cuda_graphs(device.type, options.compile_backend, options.compile_mode)
    batching = options.max_batch_size > 1
    executions = [Execution(model, names, device, batching=batching) for _ in range(options.workers)]
    tally = Tally(folder / TALLY_FILE, MOST_SIZES, COUNTED)
    facts = {"cold_start": parts, "settings": settings}

    def first(seconds: float) -> None:
        parts[FIRST_REQUEST] = seconds
        write_facts(folder / FACTS_FILE, facts)

    write_facts(folder / FACTS_FILE, facts)
    # Each user of a load has a connection.
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    service = Service(
        tally,
        options.callable,
        executions,
        max_batch_size=options.max_batch_size,
        max_wait_seconds=options.max_wait_ms / 1e3,
        on_first=first,
        graphs=GraphShapes(options.max_batch_size) if records else None,
    )
    vital(HttpServer((options.host, options.port), options.callable, service.infer).serve_forever)
    return service.run


@contextmanager
def _timed(parts: dict[str, float], name: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    parts[name] = time.perf_counter() - begin


def _give_up(text: str) -> NoReturn:
    sys.stderr.write(f"{text}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    # An orderly exit would wait for threads that the user's file started.
    os._exit(1)


if __name__ == "__main__":
    main()
