"""The fixed work of a yardstick on a card, run as a program by an interpreter that has torch.

``python yardstick_card.py DEVICE`` multiplies matrices and copies memory there, and prints as JSON how often a second.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

NO_TORCH_EXIT: Final = 3
"""As in `pytest_gpuserve.device.yardstick`, which this interpreter need not be able to import."""

WORK_SECONDS: Final = 0.2

SIZE: Final = 4096
"""Rows and columns of the matrices on a card: large enough for all of its units."""

SMALL_SIZE: Final = 512
"""The same on anything else, where this program is tried."""

COPIED_BYTES: Final = 1 << 28


def rate(do: Callable[[], object], wait: Callable[[], object]) -> float:
    """How often a second something is done; the first time does not count, and the clocks rise meanwhile."""
    do()
    wait()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < WORK_SECONDS:
        do()
        wait()
        count += 1
    return count / (time.perf_counter() - began)


def measure(torch: Any, device: str) -> dict[str, float]:  # noqa: ANN401 -- a module that need not be installed
    """Measure the device."""
    on_card = device.startswith("cuda")
    size, copied = (SIZE, COPIED_BYTES) if on_card else (SMALL_SIZE, COPIED_BYTES >> 4)
    left = torch.ones((size, size), dtype=torch.float16 if on_card else torch.float32, device=device)
    out = torch.empty_like(left)
    source = torch.ones(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    wait: Callable[[], object] = torch.cuda.synchronize if on_card else lambda: None
    # Once over, so that a card that was at rest has its clocks.
    rate(lambda: torch.mm(left, left, out=out), wait)
    return {
        "matrix multiply": rate(lambda: torch.mm(left, left, out=out), wait),
        "card memory": rate(lambda: target.copy_(source), wait),
    }


def main(device: str) -> int:
    """Measure, print, and return the exit status."""
    try:
        import torch  # noqa: PLC0415 -- that it is not there is an answer
    except ImportError:
        return NO_TORCH_EXIT
    if device.startswith("cuda") and not torch.cuda.is_available():
        return NO_TORCH_EXIT
    with torch.inference_mode():
        sys.stdout.write(json.dumps(measure(torch, device)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
