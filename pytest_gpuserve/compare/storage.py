"""A side of a comparison that lies in shared storage: fetched when it is asked for, and kept nowhere."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.store.elsewhere.address import Address
from pytest_gpuserve.store.elsewhere.filesystem import open_remote
from pytest_gpuserve.store.elsewhere.names import SUFFIX
from pytest_gpuserve.store.elsewhere.remote import StorageProblem
from pytest_gpuserve.store.published import FOLDER as PUBLISHED

if TYPE_CHECKING:
    from collections.abc import Mapping


def fetched(address: Address) -> tuple[Address, Mapping[str, bytes]]:
    """Fetch what is at an address.

    Args:
        address: Of a folder of baselines; or of one file, a result or a baseline, which ends in ``.json``.

    Returns:
        The folder, and what is in each file by its name below it; of a file the folder that it lies in.

    Raises:
        UsageProblem: There is nothing, or a library that the scheme needs is not installed.
        StorageProblem: The storage cannot be reached, or refuses.
    """
    above, _, name = address.url.rpartition("/")
    is_folder = not name.endswith(SUFFIX) or above.endswith("/")
    folder = address if is_folder else Address(address.scheme, above)
    found = {}
    with closing(open_remote(folder, called="")) as remote:
        listed = sorted(remote.listing()) if is_folder else [name]
        for each in (each for each in listed if PUBLISHED not in each.split("/")):
            held = remote.fetch(each)
            if held is not None:
                found[each] = held.data
            elif is_folder:
                # What is left would be compared as if it were all.
                raise StorageProblem(f"{folder.of(each)} was removed while {folder} was read")
    if not found:
        raise UsageProblem(
            f"there is no {'baseline in' if is_folder else 'file'} {address}",
            remedies=["name the folder that has those of the devices in it, or a file that ends in .json"],
        )
    return folder, found
