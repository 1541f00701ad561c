"""The baseline files of a session whose ``--baseline-dir`` is an address: fetched, and ready to be read."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.store.elsewhere.address import copy_folder, unsent_folder
from pytest_gpuserve.store.elsewhere.filesystem import open_remote
from pytest_gpuserve.store.elsewhere.mirror import BaselineCache
from pytest_gpuserve.store.elsewhere.remote import StorageProblem
from pytest_gpuserve.store.elsewhere.shared import SharedFiles
from pytest_gpuserve.store.elsewhere.unsent import Unsent

if TYPE_CHECKING:
    from pytest_gpuserve.store.elsewhere.address import Address


def shared_files(address: Address, device: str, *, needed: bool, updates: bool, offline: bool) -> SharedFiles:
    """Fetch what a session needs, or take what was fetched before.

    Args:
        address: Of the folder.
        device: That the session measures on.
        needed: Whether baselines will be read or written; else the storage is not asked, and the copy is as it was.
        updates: Whether it will write.
        offline: Whether the storage is not asked, and what an earlier session fetched is read as it is.

    Raises:
        UsageProblem: The storage does not let it be read, or written, or has nothing that does so safely; or nothing
            was fetched before.
    """
    mirror = BaselineCache(copy_folder(address, os.environ))
    before = mirror.refreshed_at(device)
    files = SharedFiles(
        address,
        mirror,
        lambda: open_remote(address),
        Unsent(unsent_folder(address, os.environ), address.url),
        as_of=(before or "") if offline and needed else "",
    )
    if not needed:
        return files
    if offline:
        if before is None:
            raise UsageProblem(
                f"--baseline-offline: nothing was ever fetched from {address} for {device} on this machine",
                looked=[str(mirror.files)],
                remedies=["run once without --baseline-offline"],
            )
        return files
    try:
        with closing(open_remote(address)) as remote:
            if updates:
                remote.check_writable()
            mirror.refresh(remote, device)
    except StorageProblem as problem:
        stale = [f"--baseline-offline takes what was fetched at {before}"] if before and not updates else []
        raise UsageProblem(
            f"--baseline-dir: {problem.summary}",
            found=problem.found,
            remedies=[*problem.remedies, *stale, "--baseline-dir=DIR names a folder instead"],
        ) from None
    return files
