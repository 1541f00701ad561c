"""Another package brings a kind of server, as on the page "add a server": class, fixture, check."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.docs.test_pages import DOCS, fences_of
from tests.plugin.conftest import JSON, Project, busy_machine, text_of

APP = """
import argparse, os, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

options = argparse.ArgumentParser()
options.add_argument("--port", type=int)
options.add_argument("--claimed", type=int, default=1)
options = options.parse_args()
SECONDS = 0.01
executed, lock = 0, threading.Lock()

class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def say(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.say(f"items {executed * options.claimed}\\nbatches {executed}\\nrequests {executed}\\n".encode())

    def do_POST(self):
        global executed
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(SECONDS)
        with lock, open(os.environ["EXECUTED"], "a") as file:
            file.write(f"1 {time.monotonic()}\\n")
            executed += 1
        self.say(body * 2)

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", options.port), Answer).serve_forever()
"""

CHECKED = """
import pytest
from pytest_gpuserve.testing import check_server_kind

def test_kind(bento_server, tmp_path):
    executed = tmp_path / "executed"
    server = bento_server("perf/app.py", service="x", env={"EXECUTED": str(executed)})
    check_server_kind(server.post("/", body=b"21", expect=b"2121"), executed)

def test_counts_twice(bento_server, tmp_path):
    executed = tmp_path / "executed"
    server = bento_server("perf/app.py", service="x", env={"EXECUTED": str(executed)}, claimed=2)
    with pytest.raises(AssertionError, match="batching ratio: counted, and by the model itself"):
        check_server_kind(server.post("/", body=b"21", expect=b"2121"), executed)

def test_is_not_there(bento_server):
    bento_server("app.py", service="x")
"""

GATED = """
import pytest

@pytest.mark.gpuserve(throughput=0.33)
def test_it(bento_server, load, baseline):
    server = bento_server("app.py", service="x", env={"EXECUTED": "/dev/null"})
    run = load(server.post("/", body=b"21", expect=b"2121"), concurrency=4, seconds=1, warmup_seconds=0.3)
    assert run.throughput >= baseline.throughput
"""


def install(folder: Path) -> None:
    """Make the page's package, of its snippets, and install it there; its command line is that of our app."""
    kind, plugin = fences_of(DOCS / "how-to" / "add_a_server.md", "python")[:2]
    launch = re.compile(r"\(self\.python.*?\),\n", re.DOTALL)
    kind, found = launch.subn('(self.python, str(app.file), f"--port={site.port}", *app.flags()),\n', kind)
    assert found == 1
    names = 'MetricNames(items="items", batches="batches", requests="requests")'
    kind = re.sub(r"MetricNames\(.*?\)", names, kind).replace("/readyz", "/metrics")
    files = {
        "gpuserve_bento/__init__.py": "",
        "gpuserve_bento/kind.py": kind,
        "gpuserve_bento/plugin.py": plugin,
        "bentoml-1.2.3.dist-info/METADATA": "Metadata-Version: 2.1\nName: bentoml\nVersion: 1.2.3\n",
        "bentoml-1.2.3.dist-info/entry_points.txt": "[pytest11]\nbento = gpuserve_bento.plugin\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_a_package_brings_a_kind_of_server(real_project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The page's package adds a fixture that starts, checks and records its kind of server."""
    site = tmp_path_factory.mktemp("site")
    install(site)
    real_project.environment["PYTHONPATH"] = os.pathsep.join([str(site), str(real_project.environment["PYTHONPATH"])])
    real_project.app_file.write_text(APP)
    real_project.test_file.write_text(GATED)
    (real_project.path / "suites" / "test_kind.py").write_text(CHECKED)
    real_project.ini(gpuserve_sessions=1)

    result = real_project.run_anew("suites/test_kind.py")
    result.assert_outcomes(passed=2, failed=1)
    assert "test_kind.py:17: bento_server: the app file" in text_of(result)
    assert "name it relative to the file that calls" in text_of(result)

    recording = real_project.run("-p", "gpuserve_bento.plugin", "suites/perf", "--baseline-update", JSON)
    problems = busy_machine(real_project.result()["run"])
    if problems:
        pytest.skip(f"the machine is too busy for a baseline: {problems}")
    recording.assert_outcomes(passed=1)
    entry = real_project.entry()
    assert (entry["workload"]["server"], entry["workload"]["app"]) == ("bentoml", "suites/perf/app.py")
    assert entry["software"]["bentoml"] == "1.2.3"
