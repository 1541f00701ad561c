"""``python -m pytest_gpuserve.merge``."""

from __future__ import annotations

import sys

from pytest_gpuserve.merge.command import run

if __name__ == "__main__":
    sys.exit(run())
