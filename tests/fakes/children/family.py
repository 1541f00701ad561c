"""A child with a plain child, one in another session and a daemon (forked twice). Arguments: REPORT stay|leave.

With ``leave`` it exits with code 7 when all are up. The report is {"main", "plain", "session", "daemon"}: pids.
"""

import json
import os
import signal
import sys
from pathlib import Path

reading, writing = os.pipe()


def live(kind: str) -> None:
    """Tell the pid and stay until a signal ends us."""
    os.write(writing, f"{kind} {os.getpid()}\n".encode())
    while True:
        signal.pause()


if os.fork() == 0:
    live("plain")
if os.fork() == 0:
    os.setsid()
    live("session")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        live("daemon")
    os._exit(0)

pids = {"main": os.getpid()}
with os.fdopen(reading) as told:
    for _ in range(3):
        name, pid = told.readline().split()
        pids[name] = int(pid)
draft = Path(sys.argv[1] + ".draft")
draft.write_text(json.dumps(pids))
draft.rename(sys.argv[1])
if sys.argv[2] == "leave":
    os._exit(7)
while True:
    signal.pause()
