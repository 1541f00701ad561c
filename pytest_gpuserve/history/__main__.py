"""``python -m pytest_gpuserve.history``."""

from __future__ import annotations

import sys

from pytest_gpuserve.history.command import run

if __name__ == "__main__":
    sys.exit(run())
