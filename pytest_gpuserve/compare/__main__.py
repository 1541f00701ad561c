"""``python -m pytest_gpuserve.compare``."""

from __future__ import annotations

import sys

from pytest_gpuserve.compare.command import run

if __name__ == "__main__":
    sys.exit(run())
