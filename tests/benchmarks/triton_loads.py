"""Triton out of nvidia-pytriton's wheel, with a model that returns its input, and messages to it made by its client."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.process.ports import free_port
from tests.benchmarks import ours
from tests.benchmarks.clients import Endless
from tests.benchmarks.pairs import Contestant
from tests.benchmarks.peers import PEERS_PACKAGES, Outcome, peers_folder, perf_analyzer, site_packages
from tests.benchmarks.servers import up

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "identity"
SHAPE = "IN:16"
FEW_REQUESTS = 1000
"""With a few dozen perf_analyzer gives up: it finds no statistics of so short a time."""

TRIES = 3
"""How often perf_analyzer may hang in a row."""

MODELS = Path(__file__).with_name("models")

MESSAGES = """
import sys
import numpy
from tritonclient import grpc, http

folder = sys.argv[1]
values = numpy.zeros((1, 16), numpy.float32)

over_http = http.InferInput("IN", [1, 16], "FP32")
over_http.set_data_from_numpy(values, binary_data=True)
wanted = http.InferRequestedOutput("OUT", binary_data=True)
body, json_bytes = http.InferenceServerClient.generate_request_body([over_http], outputs=[wanted])
open(f"{folder}/http.bin", "wb").write(body)

message = grpc.service_pb2.ModelInferRequest(model_name="identity")
message.inputs.add(name="IN", datatype="FP32", shape=[1, 16])
message.outputs.add(name="OUT")
message.raw_input_contents.append(values.tobytes())
open(f"{folder}/grpc.bin", "wb").write(message.SerializeToString())

print(json_bytes)
"""
"""Run by the Python that has tritonclient: what perf_analyzer sends, once."""


@dataclass(frozen=True)
class Triton:
    """A running Triton.

    Args:
        http_port: Its port for HTTP.
        grpc_port: Its port for gRPC.
        http_body: File with the body of an inference over HTTP, tensors in binary.
        http_json_bytes: How much of it is JSON.
        grpc_message: File with the message of an inference over gRPC.
    """

    http_port: int
    grpc_port: int
    http_body: Path
    http_json_bytes: int
    grpc_message: Path

    def inferences(self) -> int:
        """How many requests the model has answered well, as Triton counts."""
        url = f"http://127.0.0.1:{self.http_port}/v2/models/{MODEL}/stats"
        with urllib.request.urlopen(url, timeout=10) as answer:
            count: int = json.load(answer)["model_stats"][0]["inference_stats"]["success"]["count"]
        return count


def ours_over_http(cache: Path, server: Triton, *, concurrency: int, requests: int) -> Contestant:
    """Return our side of a comparison over HTTP; arguments as of `ours.contestant`."""
    return ours.contestant(
        cache,
        f"http://127.0.0.1:{server.http_port}/v2/models/{MODEL}/infer",
        concurrency=concurrency,
        requests=requests,
        body_file=server.http_body,
        header=f"Inference-Header-Content-Length: {server.http_json_bytes}",
    )


def ours_over_grpc(cache: Path, server: Triton, *, concurrency: int, requests: int) -> Contestant:
    """Return our side of a comparison over gRPC; arguments as of `ours.contestant`."""
    return ours.contestant(
        cache,
        f"grpc://127.0.0.1:{server.grpc_port}/inference.GRPCInferenceService/ModelInfer",
        concurrency=concurrency,
        requests=requests,
        body_file=server.grpc_message,
    )


def perf_analyzer_over(protocol: str, server: Triton, *, concurrency: int, requests: int) -> Contestant:
    """Return perf_analyzer's side; Triton's own counters say how many requests it answered."""
    port = server.http_port if protocol == "http" else server.grpc_port

    def run(count: int) -> Outcome:
        before = server.inferences()
        outcome = perf_analyzer(protocol, port, model=MODEL, shape=SHAPE, connections=concurrency, requests=count)
        return replace(outcome, requests=server.inferences() - before)

    def run_to_an_end(count: int) -> Outcome:
        for _ in range(TRIES - 1):
            with suppress(Endless):
                return run(count)
        return run(count)

    return Contestant(partial(run_to_an_end, requests), partial(run_to_an_end, FEW_REQUESTS))


@contextmanager
def triton(folder: Path) -> Iterator[Triton]:
    """Run Triton; skips where it is missing, naming what to install."""
    packages = site_packages("pytriton")
    server = packages / "pytriton" / "tritonserver"
    python = peers_folder() / "bin" / "python"
    version, libraries = _output(
        python, "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_config_var('LIBDIR'))"
    ).split()
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        pytest.skip(f"no {stub}: make the virtual environment of a Python that {PEERS_PACKAGES} supports")
    backend = folder / "backends" / "python"
    shutil.copytree(server / "backends" / "python", backend)
    shutil.copy(stub, backend)
    json_bytes = int(_output(python, MESSAGES, str(folder)))
    http_port, grpc_port = free_port(), free_port()
    argv = (
        str(server / "bin" / "tritonserver"),
        f"--model-repository={MODELS}",
        f"--backend-directory={backend.parent}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        "--allow-metrics=false",
    )
    env = {
        "PATH": f"{python.parent}:{os.environ.get('PATH', os.defpath)}",
        # The stub is linked to the libpython of the interpreter whose packages it imports, before any other.
        "LD_LIBRARY_PATH": f"{libraries}:{packages / 'nvidia_pytriton.libs'}",
        "PYTHONPATH": str(packages),
    }
    with up(argv, folder / "triton.log", http_port, "Triton", path=f"/v2/models/{MODEL}/ready", env=env):
        yield Triton(http_port, grpc_port, folder / "http.bin", json_bytes, folder / "grpc.bin")


def _output(python: Path, program: str, *arguments: str) -> str:
    done = subprocess.run([str(python), "-c", program, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()
