"""``transformers serve``, with a model of random weights that it writes first.

``python transformers_serve.py --port 8080`` serves ``/v1/chat/completions``. Further arguments are passed on.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers

if TYPE_CHECKING:
    from suites.llm.apps.tiny_model import Size, write_folder
else:
    # A script imports its neighbours by their bare names.
    from tiny_model import Size, write_folder


def main() -> None:
    """Become the server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=tempfile.gettempdir(), help="folder for the written model")
    parser.add_argument("--model", type=Path, help="a model of your own instead: its folder")
    options, more = parser.parse_known_args()
    model = options.model or options.folder / "tiny"
    if options.model is None:
        write_folder(model, Size())
        torch.manual_seed(1)
        drawn = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(model))
        # It does not support ignore_eos. The end token has a logit of 0, which is never the largest of random ones.
        drawn.lm_head.weight.data[drawn.config.eos_token_id] = 0
        drawn.save_pretrained(model)
    program = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(model), "--host=127.0.0.1"]
    os.execve(sys.executable, [*program, *more], {**os.environ, "HF_HUB_OFFLINE": "1"})


main()
