"""``python -m pytest_gpuserve.doctor``."""

from __future__ import annotations

import sys

from pytest_gpuserve.doctor.command import run

if __name__ == "__main__":
    sys.exit(run())
