"""A bounded fork bomb: lines of processes that ignore SIGTERM, each forking one successor and dying. Arguments: REPORT.

Some lines make a new session at each step, at a pace that a walk through /proc can follow on a busy machine; the others
are faster than any walk. The report is written after some generations. All lines die out by themselves in the end, so
that a supervisor that fails at them does not cost the machine.
"""

import os
import signal
import sys
import time
from pathlib import Path

LINES = 6
END = time.monotonic() + 60
signal.signal(signal.SIGTERM, signal.SIG_IGN)
# The kernel collects the dead, so that the lines can go on for as long as they are let.
signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def breed(*, sessions: bool) -> None:
    """Be the first of a line."""
    generation = 0
    while time.monotonic() < END:
        time.sleep(0.5 if sessions else 0.002)
        if os.fork():
            time.sleep(0.01)
            os._exit(0)
        generation += 1
        if sessions:
            os.setsid()
        if generation == (2 if sessions else 50):
            draft = Path(f"{sys.argv[1]}.{os.getpid()}")
            draft.write_text("true")
            draft.rename(sys.argv[1])
    os._exit(0)


for line in range(LINES):
    if os.fork() == 0:
        breed(sessions=line % 2 == 0)
signal.alarm(60)
while True:
    signal.pause()
