"""A measurement that cannot be trusted is INVALID, says why, and is never recorded: real servers with real faults."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from pytest_gpuserve.verdict.reason import ReasonKind
from tests.fakes.scripted_starts import Script
from tests.plugin.conftest import says_no_traceback
from tests.support.reasons import because

if TYPE_CHECKING:
    from tests.plugin.conftest import Project

FAULTY = """
import os, signal, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

fault, port = sys.argv[1], int(sys.argv[2])
answered = 0

class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        global answered
        body = self.rfile.read(int(self.headers["Content-Length"])).upper()
        time.sleep(0.002)
        answered += 1
        if fault == "dies" and answered > 100:
            print("the model has fallen over", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "wrong" and answered % 20 == 0:
            body = b"nonsense"
        if fault == "mixed up":
            body = {b"FOX": b"DOG", b"DOG": b"FOX"}[body]
        refused = fault == "refuses" and answered > 1
        self.send_response(429 if refused else 200 if self.path == "/inference" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

if fault == "fails":
    print("no weights here", flush=True)
    sys.exit(3)

ThreadingHTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""
"""A server with a fault, which is up at once."""

SUITE = """
import pytest

def too_foxy(body):
    assert body != b"FOX", "too foxy"
    return True

@pytest.mark.parametrize("fault", {faults})
def test_it(command_server, load, baseline, fault):
    server = command_server(["{{python}}", "faulty.py", fault, "{{port}}"])
    path = "/no/such/route" if fault == "lost" else "/inference"
    fox = server.post(path, body=b"fox", expect=too_foxy if fault == "checked" else b"FOX")
    if fault == "mixed up":
        fox = server.rotate([fox, server.post(path, body=b"dog", expect=b"DOG")])
    run = load(fox, concurrency=8, seconds=1, warmup_seconds=0.3)
    assert run.throughput >= baseline.throughput
"""

TOLD = {
    "wrong": r"INVALID: throughput.*wrong answers: .*expected b'FOX', got b'nonsense'",
    # A check given as a function may raise; its words are in the message.
    "checked": r"INVALID: throughput.*wrong answers: .*AssertionError: too foxy",
    "mixed up": r"INVALID.*wrong answers: \d+ .* of them right for another request; the first: .*answers are mixed up",
    # Not a pile of resets.
    "dies": r"INVALID: throughput.*died under load \(killed by SIGKILL\).*fallen over",
    "refuses": r"INVALID: throughput.*request errors \(status 429: ",
    "fails": r"exit code 3.*no weights here",
    "lost": r"refuses POST /no/such/route.*status 404",
}
"""What is said of each fault."""


def test_a_server_with_a_fault_is_told_and_not_recorded(real_project: Project) -> None:
    """One that is fast and wrong, dies or refuses is INVALID; of one that does not start its end is told, and its log.

    A wrong path is told as that.
    """
    real_project.test_file.with_name("faulty.py").write_text(FAULTY)
    real_project.test_file.write_text(SUITE.format(faults=list(TOLD)))
    result = real_project.run("--baseline-update", "--gpuserve-json=out.json")
    result.assert_outcomes(failed=len(TOLD))
    tests = json.loads((real_project.path / "out.json").read_text())["tests"]
    problems = {re.sub(r".*\[(.*)\]", r"\1", test["nodeid"]): test["problem"] for test in tests}
    assert {fault: text for fault, text in problems.items() if not re.search(TOLD[fault], text, re.DOTALL)} == {}
    assert not real_project.baseline.exists()
    assert says_no_traceback(result)


def test_a_test_without_assertions_does_not_hide_it(project: Project) -> None:
    """A load whose answers are wrong fails its test even if the test compares nothing."""
    project.write("")
    project.script = Script(problems=because("wrong answers: 3 of 9", kind=ReasonKind.WRONG_ANSWERS))
    result = project.run()
    result.assert_outcomes(passed=1, errors=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*INVALID: nothing can be concluded*", "*wrong answers: 3 of 9*"])
