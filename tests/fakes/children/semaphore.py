"""A child and its spawned worker that share events, made of named semaphores, and ignore SIGTERM. Arguments: REPORT.

The report is {"pids": [main, worker, tracker], "tracker", "files": paths below /dev/shm}.
"""

import json
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import sys
from multiprocessing.synchronize import Event
from pathlib import Path


def work(up: Event, stop: Event) -> None:
    """Hold both events."""
    up.set()
    stop.wait()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    context = multiprocessing.get_context("spawn")
    up, stop = context.Event(), context.Event()
    worker = context.Process(target=work, args=(up, stop))
    worker.start()
    up.wait()
    tracker = multiprocessing.resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]  # private
    locks = [up._cond._lock, up._flag, stop._cond._lock, stop._flag]  # type: ignore[attr-defined]  # private
    files = [f"/dev/shm/sem.{lock._semlock.name.removeprefix('/')}" for lock in locks]
    draft = Path(sys.argv[1] + ".draft")
    draft.write_text(json.dumps({"pids": [os.getpid(), worker.pid, tracker], "tracker": tracker, "files": files}))
    draft.rename(sys.argv[1])
    while True:
        signal.pause()
