"""Builds the fake of NVIDIA's management library, and the environment in which a process finds it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        command = [
            "cc",
            "-shared",
            "-fPIC",
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
            "-o",
            str(partial),
            str(_SOURCE),
        ]
        subprocess.run(command, check=True)
        partial.rename(library)
    return library


def fake_environment(folder: Path, products: Sequence[str], **errors: int | str) -> dict[str, str]:
    """Make an environment for a child process whose NVML is the fake.

    Args:
        folder: Where ``build_fake_nvml`` has put it.
        products: Product names of the GPUs, by index.
        errors: ``init_error=18`` becomes ``FAKE_NVML_INIT_ERROR=18``: see the head of ``fake_nvml.c``. An error of one
            GPU only is written as in ``name_error="15@1"``.

    Returns:
        The whole environment: this process's own without CUDA_VISIBLE_DEVICES, and with the fake's variables.
    """
    own = {
        key: value
        for key, value in os.environ.items()
        if key != "CUDA_VISIBLE_DEVICES" and not key.startswith("FAKE_NVML_")
    }
    searched = [str(folder), *([own["LD_LIBRARY_PATH"]] if own.get("LD_LIBRARY_PATH") else [])]
    return {
        **own,
        "LD_LIBRARY_PATH": os.pathsep.join(searched),
        "FAKE_NVML_PRODUCTS": ";".join(products),
        **{f"FAKE_NVML_{name.upper()}": str(value) for name, value in errors.items()},
    }
