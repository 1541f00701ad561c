"""A control group with a CPU quota, by which a whole run is as slow as on a slower machine; of either version.

The period is short, so that no request waits for the next one as it would on a machine that stands still now and then.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PERIOD_US: Final = 5000

_V1: Final = Path("/sys/fs/cgroup/cpu")
_V2: Final = Path("/sys/fs/cgroup")

_END_SECONDS: Final = 10.0


@contextmanager
def cpu_quota(cores: float) -> Iterator[Path]:
    """Make a group whose processes have so many cores together; whoever is put into it is slower from then on.

    Skips the test where no group can be made.

    Args:
        cores: Their time, as cores.
    """
    quota_us = round(cores * PERIOD_US)
    is_first = (_V1 / "cpu.cfs_quota_us").exists() or (_V1 / "cgroup.procs").exists()
    group = (_V1 if is_first else _V2) / f"gpuserve-test-{os.getpid()}"
    try:
        group.mkdir()
        if is_first:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
    except OSError as problem:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"needs a control group with a CPU quota: {problem}")
    try:
        yield group
    finally:
        # A group is removed when its last process has been reaped.
        deadline = time.monotonic() + _END_SECONDS
        while group.exists() and time.monotonic() < deadline:
            with suppress(OSError):
                group.rmdir()
            time.sleep(0.05)


def join(group: Path) -> None:
    """Put this process, and all that it will start, into a group."""
    (group / "cgroup.procs").write_text(str(os.getpid()))
