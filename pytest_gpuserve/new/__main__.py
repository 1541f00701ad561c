"""``python -m pytest_gpuserve.new``."""

from __future__ import annotations

import sys

from pytest_gpuserve.new.command import run

if __name__ == "__main__":
    sys.exit(run())
