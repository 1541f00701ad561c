"""Writes the network as a file: ``python -m tft.export_network --dataset electricity --format ts-trace --output FILE``.

The server takes a trace with ``TFT_FORMAT=ts-trace TFT_EXPORTED=FILE``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .contract import DATASETS, INPUTS
from .data import synthetic
from .export import export_onnx, export_trace
from .model import DEFAULT_SEED, HIDDEN, build_model

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> None:
    """Write the file of the command line.

    Raises:
        SystemExit: An argument has a wrong value or is not known.
        OSError: A file cannot be read or written.
        ImportError: ONNX is requested, but its package is not installed.
    """
    parser = argparse.ArgumentParser(description="Export the Temporal Fusion Transformer", allow_abbrev=False)
    parser.add_argument("--dataset", choices=sorted(DATASETS), required=True)
    parser.add_argument("--format", choices=["ts-trace", "onnx"], required=True)
    parser.add_argument("--output", type=Path, required=True, help="the file")
    parser.add_argument("--size", choices=sorted(HIDDEN), default="full")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="seed of the random weights")
    parser.add_argument("--weights", type=Path, help="a state dict instead of random weights")
    options = parser.parse_args(arguments)
    model = build_model(options.dataset, size=options.size, seed=options.seed, weights=options.weights)
    rows = synthetic(options.dataset, 2).inputs
    export = export_trace if options.format == "ts-trace" else export_onnx
    export(model, [torch.from_numpy(rows[spec.name]) for spec in INPUTS], options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
