"""The model by itself, for a benchmark without a server and without pictures to decode.

``python catdog_model_only.py --size tiny --precision fp32 --device cuda`` reads lines from its standard input. ``batch
8`` makes a batch of 8 random pictures on the device. ``run`` sends it through the model and waits for the device. Each
line is answered with a line ``done``. The process ends with its input. It is a process of its own, because one that
keeps a context on the GPU would disturb the next measurement there.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from suites.catdog.apps.catdog_model import Classifier, build_model
    from suites.catdog.apps.catdog_settings import DEFAULT_SEED, LABELS, PRECISIONS, SIZES
else:
    # A script imports its neighbours by their bare names.
    from catdog_model import Classifier, build_model
    from catdog_settings import DEFAULT_SEED, LABELS, PRECISIONS, SIZES


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line.

    Args:
        arguments: The command line without the program's name.

    Returns:
        The options by name.

    Raises:
        SystemExit: An argument is not known or has a wrong value.
    """
    parser = argparse.ArgumentParser(description="the model by itself", allow_abbrev=False)
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="type of weights and activations")
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny", help="dimensions of the model (default tiny)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device of the model (default cpu)")
    return parser.parse_args(arguments)


def runner(classifier: Classifier, pictures: int, resolution: int) -> Callable[[], None]:
    """Make the function that runs one batch of random pictures, already on the device, and waits."""
    generator = torch.Generator().manual_seed(DEFAULT_SEED)
    pixels = torch.randn(pictures, 3, resolution, resolution, generator=generator)
    batch = pixels.to(classifier.device, classifier.dtype)

    def run() -> None:
        with torch.inference_mode():
            classifier.model(batch)
        if classifier.device.type == "cuda":
            torch.cuda.synchronize()

    return run


def main() -> None:
    """Execute the lines of standard input."""
    options = parse_options(sys.argv[1:])
    if options.device == "cpu":
        # The same number as a worker of the server.
        torch.set_num_threads(1)
    size = SIZES[options.size]
    model = build_model(size.depths, size.widths, len(LABELS))
    classifier = Classifier(model, precision=PRECISIONS[options.precision], device=options.device)
    run = runner(classifier, 1, size.resolution)
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        if word == "batch":
            run = runner(classifier, int(number), size.resolution)
        elif word == "run":
            run()
        else:
            sys.exit(f"{line!r} is neither 'batch NUMBER' nor 'run'")
        sys.stdout.write("done\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
