"""A pytest plugin (``-p tests.fakes.own_locks``) whose runs do not wait for other measurements on this machine.

It is for tests of the plugin, several of which run at once and whose numbers do not count.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

LOCKS_VARIABLE: Final = "OWN_LOCKS"
"""Environment variable: a folder for device locks, in the place of the machine's."""

OWN_LOCKS: Final = ("-p", "tests.fakes.own_locks")
"""Options of pytest."""


def pytest_configure(config: pytest.Config) -> None:
    """Put device locks into that folder."""
    from pytest_gpuserve.device import lock

    folder = Path(os.environ[LOCKS_VARIABLE])
    patch = pytest.MonkeyPatch()
    patch.setattr(lock, "_machine_folder", lambda: folder)
    config.add_cleanup(patch.undo)
