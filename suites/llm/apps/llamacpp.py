"""llama.cpp's server, from the package xllamacpp, with a model of random weights that it writes first.

``python llamacpp.py --port 8080`` serves ``/v1/chat/completions``, ``/v1/completions``, ``/metrics`` and the rest.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

ENDS = {signal.SIGTERM, signal.SIGINT}
# Before the import: the server runs in threads, and they inherit what is blocked.
signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)

import xllamacpp  # noqa: E402 -- see above

if TYPE_CHECKING:
    from suites.llm.apps.tiny_gguf import write_model
    from suites.llm.apps.tiny_model import Size
else:
    # A script finds its neighbours by their bare names.
    from tiny_gguf import write_model
    from tiny_model import Size

TOKENS_OF_A_SLOT = 1024
"""Prompt and answer of a sequence."""


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, default=tempfile.gettempdir(), help="where the model is written")
    parser.add_argument("--model", type=Path, help="a GGUF file of your own instead")
    parser.add_argument("--slots", type=int, default=8, help="sequences that are computed together (default 8)")
    parser.add_argument("--cache-prompt", action="store_true", help="keep the beginning of prompts that come again")
    parser.add_argument("--gpu-layers", type=int, default=0, help="layers that lie on a GPU (default 0)")
    options = parser.parse_args()
    model = options.model or options.folder / "tiny.gguf"
    if options.model is None:
        write_model(model, Size())
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.slots
    params.n_ctx = TOKENS_OF_A_SLOT * options.slots
    params.n_gpu_layers = options.gpu_layers
    params.endpoint_metrics = True
    params.cache_prompt = options.cache_prompt
    params.warmup = True
    if not options.gpu_layers:
        # A second thread waits at each layer for the first one longer than it computes.
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    # It serves as long as it is referred to.
    server = xllamacpp.Server(params)
    sys.stderr.write(f"{server.listening_address}\n")
    signal.sigwait(ENDS)


main()
