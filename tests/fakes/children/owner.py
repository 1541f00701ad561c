"""An owner of processes. Arguments: ORDER, a JSON file, and REPORT.

The order is {"commands": [[ARGUMENT, ...], ...], "folder": F, "owned": [FOLDER, ...], "fork": BOOL}. The
report is {"children": pids, "supervisors": pids, "copy": pid of a fork of this process that holds all its descriptors,
or 0}.
On SIGINT the first child, whose last argument is its port, is asked whether it still answers, all are stopped, and
REPORT.interrupted gets {"answered": BOOL}.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from pytest_gpuserve.process.child import Command, Process
from tests.fakes.children.toolkit import put_report, stay

order = json.loads(Path(sys.argv[1]).read_text())
folder = Path(order["folder"])
with ExitStack() as stack:
    processes = []
    for index, argv in enumerate(order["commands"]):
        command = Command(tuple(argv), os.environ, folder, folder / f"log{index}")
        owned = [Path(order["owned"][index])] if order["owned"] else []
        processes.append(stack.enter_context(Process.start(command, owned_folders=owned)))
    copy = os.fork() if order["fork"] else 0
    if copy == 0 and order["fork"]:
        stay()
    supervisors = [process._supervisor.pid for process in processes]
    put_report(sys.argv[2], {"children": [each.pid for each in processes], "supervisors": supervisors, "copy": copy})
    try:
        stay()
    except KeyboardInterrupt:
        connection = http.client.HTTPConnection("127.0.0.1", int(order["commands"][0][-1]), timeout=20)
        connection.request("GET", "/")
        answered = connection.getresponse().status == http.client.OK
        connection.close()
put_report(sys.argv[2] + ".interrupted", {"answered": answered})
