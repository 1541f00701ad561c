"""Runs an app's file as Python itself would, in a prepared process."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import runpy
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def run_as_main(file: Path, arguments: Sequence[str], *, scratch: Path) -> NoReturn:
    """Run the file as ``python FILE ARGUMENTS...`` does, and end this process with its exit status.

    The file is ``__main__``, so its definitions can be pickled, and spawned workers import it as usual. Its folder
    comes first in the import path.

    Args:
        scratch: Folder for the sockets of `multiprocessing`, which a killed app would leave behind elsewhere.
    """
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(file.resolve().parent)
    sys.argv[1:] = arguments
    # The only way is private. Children inherit it, and TMPDIR would move the app's caches too.
    multiprocessing.process.current_process()._config["tempdir"] = str(scratch)  # type: ignore[attr-defined]  # noqa: SLF001
    try:
        runpy.run_path(str(file), run_name="__main__")
        status = 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            status = end.code or 0
        else:
            sys.stderr.write(f"{end.code}\n")
            status = 1
    except BaseException:  # noqa: BLE001 - all that Python itself would show
        traceback.print_exc()
        status = 1
    if status == 0:
        sys.exit(0)
    sys.stdout.flush()
    sys.stderr.flush()
    # An orderly exit would wait for the app's other processes, which wait for it.
    os._exit(status)
