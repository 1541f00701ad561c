"""Writes ``data.json`` for perf_analyzer: ``python -m tft.prepare_input_data --dataset traffic --output data.json``.

The published generator wrote one example, so every request of a load was the same; ``--examples 16`` writes several.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .contract import DATASETS
from .data import random_examples, synthetic
from .data_json import write_data

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
    write_data(options.output, make(options.dataset, options.examples, seed=options.seed).inputs)


if __name__ == "__main__":
    main(sys.argv[1:])
