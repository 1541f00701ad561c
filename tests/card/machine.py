"""What a strange machine has, and an environment on it that has the rest; needs nothing but the standard library."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAMS: Final = ("nvidia-smi", "nvcc", "gcc", "g++", "cc", "git", "ip", "unshare", "podman", "docker")

ASK_SECONDS: Final = 60.0
"""For one question; torch is slow to import where the disk is."""

TORCH: Final = """
import json, torch
cards = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "cards": cards}))
"""

_SMI: Final = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total,mig.mode.current", "--format=csv,noheader")

# A virtual environment of a virtual environment has the packages of neither: both are named.
_FOLDERS: Final = "import json, site, sys; print(json.dumps([p for p in sys.path if p.endswith('-packages')]))"


def look() -> dict[str, Any]:
    """Look for what steps use; what is not there is None."""
    installed = {f"{each.metadata['Name']}=={each.version}" for each in metadata.distributions()}
    torch = _said([sys.executable, "-c", TORCH])
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "programs": {name: shutil.which(name) for name in PROGRAMS},
        "torch": json.loads(torch) if torch else None,
        "nvidia-smi": _said(_SMI),
        "installed": sorted(installed),
    }


def make_environment(folder: Path, below: Sequence[str]) -> str:
    """Make an environment without packages of its own, on top of the packages of others; needs no network.

    Args:
        folder: Where it is made.
        below: Interpreters whose packages it has too, the first one's first.

    Returns:
        Its interpreter.

    Raises:
        subprocess.SubprocessError: It cannot be made.
    """
    command = [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", str(folder)]
    subprocess.run(command, check=True, timeout=ASK_SECONDS, capture_output=True)
    python = str(folder / "bin" / "python3")
    places: list[str] = []
    for each in below:
        _link_programs(Path(each).parent, folder / "bin")
        told = subprocess.run([each, "-c", _FOLDERS], check=True, timeout=ASK_SECONDS, capture_output=True, text=True)
        places += json.loads(told.stdout)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "below.pth").write_text("".join(f"{place}\n" for place in dict.fromkeys(places)), encoding="utf-8")
    return python


def _link_programs(source: Path, target: Path) -> None:
    """Link programs that packages of a virtual environment have installed: mosec looks for its own beside Python."""
    if (source.parent / "pyvenv.cfg").exists():
        for program in source.iterdir():
            with suppress(FileExistsError):
                (target / program.name).symlink_to(program)


def install(python: str, pins: Sequence[str], wheels: Path, log: Path, seconds: float) -> str:
    """Install wheels of a folder, and nothing that they require: what the machine's own packages lack is not asked.

    Returns:
        Why that did not succeed; empty where it did.
    """
    options = ["--no-index", f"--find-links={wheels}", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"]
    # Whatever is configured on the machine leads to a network that is not there.
    environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
    with log.open("ab") as output:
        try:
            done = subprocess.run(
                [python, "-m", "pip", "install", *options, *pins],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=max(1.0, seconds),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"pip did not end in {seconds:.0f} s"
    return f"pip ended with {done.returncode}" if done.returncode else ""


def _said(command: Sequence[str]) -> str | None:
    """What a program says; None where it is not there or fails."""
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=ASK_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
