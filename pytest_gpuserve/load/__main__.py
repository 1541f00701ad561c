"""``python -m pytest_gpuserve.load``."""

from __future__ import annotations

import sys

from pytest_gpuserve.load.command import run

if __name__ == "__main__":
    sys.exit(run())
