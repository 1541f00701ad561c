"""Builds the fake of NVIDIA's management library, and the environment in which a process finds it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

LIBRARY = "libnvidia-ml.so.1"

_SOURCE = Path(__file__).with_name("fake_nvml.c")


def build_fake_nvml(folder: Path) -> Path:
    """Compile the fake into a folder, under the name by which programs load the real library.

    Args:
        folder: An existing folder; what is already built there is used as it is.

    Returns:
        The library.

    Raises:
        subprocess.CalledProcessError: The compiler refuses; its output is on standard error.
    """
    library = folder / LIBRARY
    if not library.exists():
        partial = folder / f"{LIBRARY}.{os.getpid()}"
        options = ("-shared", "-fPIC", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread")
        subprocess.run(["cc", *options, "-o", str(partial), str(_SOURCE)], check=True)
        partial.rename(library)
    return library


def fake_environment(folder: Path) -> dict[str, str]:
    """Make the environment of a child process whose NVML is the library in a folder: a machine without a GPU.

    Returns:
        The whole environment: this process's own without CUDA_VISIBLE_DEVICES, and with the fake's variables.
    """
    own = {
        key: value
        for key, value in os.environ.items()
        if key != "CUDA_VISIBLE_DEVICES" and not key.startswith("FAKE_NVML_")
    }
    searched = [str(folder), *([own["LD_LIBRARY_PATH"]] if own.get("LD_LIBRARY_PATH") else [])]
    return {**own, "LD_LIBRARY_PATH": os.pathsep.join(searched)}
