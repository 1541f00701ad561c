"""Looks whether a session measures on a device, without taking it."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from pytest_gpuserve.device.lock import DeviceLock
from pytest_gpuserve.doctor.facts import LockState

if TYPE_CHECKING:
    from pathlib import Path


def read_lock(key: str, *, folder: Path | None = None) -> LockState:
    """Say whether a session measures on a device.

    Args:
        key: ``cpu``, or the card's UUID.
        folder: Where locks are; the machine's own by default.
    """
    lock = DeviceLock(key, command="", folder=folder)
    # What people put there that is no file must neither be followed nor hold us up.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(lock.path, flags)
    except FileNotFoundError:
        return LockState(held=False)
    except OSError as error:
        return LockState(held=None, told=f"{lock.path}: {error.strerror}")
    try:
        # Two who look do not keep each other out, and a session that wants it tries again in a moment.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = lock.holder()
        return LockState(held=True, told=str(holder), pid=holder.pid)
    except OSError as error:
        return LockState(held=None, told=f"{lock.path}: {error.strerror}")
    finally:
        os.close(descriptor)
    return LockState(held=False)
