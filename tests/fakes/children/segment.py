"""A child that maps files of /dev/shm and forgets to remove them. Arguments: REPORT PATH..."""

import mmap
import signal
import sys
from pathlib import Path

maps = []
for path in sys.argv[2:]:
    with Path(path).open("a+b") as file:
        file.truncate(4096)
        maps.append(mmap.mmap(file.fileno(), 4096))
draft = Path(sys.argv[1] + ".draft")
draft.write_text("true")
draft.rename(sys.argv[1])
while True:
    signal.pause()
