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
# Before the import, because the server's threads inherit the blocked signals.
signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)

import xllamacpp  # noqa: E402 -- see above

if TYPE_CHECKING:
    from suites.llm.apps.tiny_gguf import write_model
    from suites.llm.apps.tiny_model import Size
else:
    # A script imports its neighbours by their bare names.
    from tiny_gguf import write_model
    from tiny_model import Size

TOKENS_OF_A_SLOT = 1024
"""Tokens of prompt and answer of a sequence."""


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, default=tempfile.gettempdir(), help="folder for the written model")
    parser.add_argument("--model", type=Path, help="a GGUF file of your own instead")
    parser.add_argument("--slots", type=int, default=8, help="sequences that are computed together (default 8)")
    parser.add_argument("--cache-prompt", action="store_true", help="keep the beginning of repeated prompts")
    parser.add_argument("--gpu-layers", type=int, default=0, help="layers on a GPU (default 0)")
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
        # A second thread waits longer for the first one at each layer than it computes.
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    # The server runs while it is referenced.
    server = xllamacpp.Server(params)
    sys.stderr.write(f"{server.listening_address}\n")
    signal.sigwait(ENDS)


main()
