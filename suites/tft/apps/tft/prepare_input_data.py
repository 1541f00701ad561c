"""Writes ``data.json`` for perf_analyzer: ``python -m tft.prepare_input_data --dataset traffic --output data.json``.

``{"data": [{"NAME": {"content": [...], "shape": [...]}, ...}, ...]}`` has one entry for each example, without the batch
(source: "Input Data" in the documentation of Triton's perf_analyzer); ``dtype`` was written by the published generator
too. That generator wrote one example, so every request of a load was the same; ``--examples 16`` writes several.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .contract import DATASETS
from .data import random_examples, synthetic

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> None:
    """Write the file that the command line asks for.

    Raises:
        SystemExit: An argument has a wrong value or is not known.
        OSError: The file cannot be written.
    """
    parser = argparse.ArgumentParser(description="Write data.json for perf_analyzer", allow_abbrev=False)
    parser.add_argument("--dataset", choices=sorted(DATASETS), required=True)
    parser.add_argument("--output", type=Path, required=True, help="the file")
    parser.add_argument("--examples", type=int, choices=range(1, 1025), default=1, metavar="1..1024")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random", action="store_true", help="noise instead of hours that could have been")
    options = parser.parse_args(arguments)
    make = random_examples if options.random else synthetic
    inputs = make(options.dataset, options.examples, seed=options.seed).inputs
    entries = [
        {
            name: {
                "content": values[row].reshape(-1).tolist(),
                "shape": list(values[row].shape),
                "dtype": values.dtype.name,
            }
            for name, values in inputs.items()
        }
        for row in range(options.examples)
    ]
    options.output.write_text(json.dumps({"data": entries}, allow_nan=False), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
