"""A suite that loads several replicas at once, as its user sees it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.plugin.conftest import is_busy, says_no_traceback
from tests.servers.test_remote_replicas import address, replicas

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project

SUITE = """
import pytest

URLS = {urls!r}

@pytest.fixture(scope="module")
def fox(remote_server):
    return remote_server(URLS).post("/infer", body=b"fox", expect=b"FOX")

def test_it(fox, load):
    run = load(fox, concurrency=4, seconds=1, warmup_seconds=0.3)
    assert run.throughput >= 1

def test_workers(fox, load):
    load(fox, concurrency=4, processes=3)

def test_users(fox, load):
    load(fox, concurrency=1)

def test_duel(fox, remote_server, duel):
    duel(fox, remote_server([*URLS, "http://127.0.0.1:1"]).post("/infer"), concurrency=4)
"""


def test_a_suite_loads_several_replicas(real_project: Project, tmp_path: Path) -> None:
    """One URL more in the list is all that it takes; what each did is in the summary and in the result."""
    with ExitStack() as stack:
        servers = stack.enter_context(replicas(tmp_path, "ms=8", "ms=8"))
        names = [address(server) for server in servers]
        real_project.test_file.write_text(SUITE.format(urls=[f"http://{name}" for name in names]))
        result = real_project.run("--gpuserve-json=out.json", "-p", "no:randomly")
    tests = {
        test["nodeid"].rpartition("::")[2]: test
        for test in json.loads((real_project.path / "out.json").read_text())["tests"]
    }
    run = tests["test_it"]["run"]
    busy = bool(run["problems"])
    assert all(map(is_busy, run["problems"])), run["problems"]
    assert run["errors"] == {}
    assert [each["name"] for each in run["replicas"]["each"]] == names
    assert sum(each["requests"] for each in run["replicas"]["each"]) == run["requests"]
    assert (run["workload"]["server"], run["workload"]["replicas"]) == ("remote", "2")
    assert run["server"]["addresses"] == ", ".join(names)
    result.stdout.fnmatch_lines(["replicas of test_it: 2, busiest +* over the mean, p99 * to * (slowest: 127.0.0.1:*)"])
    # What cannot be dealt out is told before anything is loaded.
    result.stdout.fnmatch_lines(["*load(processes=3) cannot be dealt out evenly to 2 replicas*"])
    result.stdout.fnmatch_lines(["*1 request at a time cannot be shared by 2 replicas*"])
    result.stdout.fnmatch_lines(["*4 requests at a time cannot be shared by 6 replicas*"])
    result.assert_outcomes(passed=0 if busy else 1, failed=4 if busy else 3)
    assert says_no_traceback(result)
