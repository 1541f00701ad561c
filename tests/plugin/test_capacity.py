"""``load.capacity(...)``: recorded, gated, limited, compared side by side, refused, and told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.plugin.conftest import says_no_traceback, text_of

if TYPE_CHECKING:
    from tests.plugin.conftest import Checkout, Project

GATED = "assert run.capacity >= baseline.capacity"

TEST = """
import pytest
from pytest_gpuserve import ms
from pytest_gpuserve.load import Objectives

@pytest.fixture(scope="module")
def server(mosec_server):
    return mosec_server("app.py")


def test_it(server, load, baseline):
    run = load.capacity(server.post("/inference", body=b"fox", expect=b"FOX", stream={stream}), {arguments})
    {assertion}
"""


def write(project: Project, assertion: str = GATED, *, arguments: str = "p99=50 * ms", stream: bool = False) -> None:
    """Write a test that searches."""
    project.write()
    project.test_file.write_text(TEST.format(assertion=assertion, arguments=arguments, stream=stream))


@pytest.fixture
def searched(project: Project) -> Project:
    """A project with a recorded capacity."""
    write(project)
    project.run("--baseline-update").assert_outcomes(passed=1)
    return project


def test_a_capacity_is_recorded_gated_and_told(searched: Project) -> None:
    """The same build passes; file, result and page have the probes; how closely it is searched is no other workload."""
    write(searched, arguments="p99=50 * ms, precision=0.02, seconds=20")
    result = searched.run("--gpuserve-json=out.json", "--gpuserve-report=out.html")
    result.assert_outcomes(passed=1)
    (verdict,) = searched.result()["verdicts"]
    assert (verdict["metric"], verdict["verdict"], verdict["unit"]) == ("capacity", "PASS", "1/s")
    assert verdict["tolerance"] == 0.10
    assert verdict["value"] == pytest.approx(1000, rel=0.03)
    entry = searched.entry()
    assert entry["workload"]["objective"] == "p99 <= 0.05 s"
    assert {probe["finding"] for probe in entry["sessions"][0]["starts"][0]["search"]["probes"]} == {
        "met",
        "missed",
        "undecided",
    }
    summary = json.loads(searched.baseline.read_text())["summary"]["test_it"]
    assert set(summary) == {"capacity", "cold_start"}
    run = searched.result()["run"]
    assert len(run["searches"]) == run["starts"] == 2 * run["sessions"]
    for search in run["searches"]:
        assert search["low"] < search["capacity"] < search["high"]
        findings = [probe["finding"] for probe in search["probes"]]
        assert findings == ["met", "met", "missed", "missed", *["undecided"] * 8]
    assert run["throughput"] is None
    assert set(run["latency"].values()) == {None}
    page = (searched.path / "out.html").read_text()
    assert "start 2: capacity " in page
    assert page.count('<td class="number">missed</td>') == 2 * run["starts"]


def test_a_capacity_is_compared_with_its_like(searched: Project) -> None:
    """A build with 40 % less is REGRESSED; a baseline of another objective is MISSING, and the difference is named.

    Several objectives at once are another one, and only of streams.
    """
    searched.speed(0.6)
    result = searched.run("--no-confirm")
    result.assert_outcomes(failed=1)
    assert "REGRESSED: capacity is " in text_of(result)
    assert says_no_traceback(result)
    write(searched, arguments="p99=40 * ms")
    result = searched.run()
    result.assert_outcomes(failed=1)
    assert "MISSING" in text_of(result)
    assert "p99 <= 0.04 s" in text_of(result)
    write(searched, arguments="p99=Objectives(ttft=40 * ms)", stream=True)
    assert "99 % with ttft <= 0.04 s" in text_of(searched.run())
    write(searched, arguments="p99=Objectives(ttft=40 * ms)")
    assert "only a stream has a TTFT or a TPOT, and these answers are none" in text_of(searched.run())


def test_limits_and_refusals(project: Project) -> None:
    """A limit needs no baseline; a wrong argument, or what a search has not, fails without a traceback of ours."""
    write(
        project,
        """assert run.capacity >= 900
    low, high = run.interval
    assert low < run.capacity.value < high
    assert len(run.searches) == 2
    with pytest.raises(Exception, match="has no throughput"):
        run.throughput
    with pytest.raises(Exception, match="takes one objective"):
        load.capacity(server.post("/inference"), name="other")
    with pytest.raises(Exception, match="gates nothing"):
        run.capacity <= baseline.capacity
    assert run.capacity >= 1100""",
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines([r"E +assert REGRESSED: capacity is .*limit 1100/s.*"])
    assert says_no_traceback(result)


def test_two_revisions_are_searched_by_turns(checkout: Checkout) -> None:
    """``--against`` searches both builds afresh, one after the other, until it is decided; a re-run goes on with it."""
    project = checkout.project
    write(project)
    checkout.commit("a search")
    project.run("--against=HEAD").assert_outcomes(passed=1)
    servers = [line.split()[0] for line in checkout.servers()]
    assert servers == ["start", "end"] * (len(servers) // 2)
    assert len(servers) >= 4
    project.run("--against=HEAD", "--gpuserve-json=out.json").assert_outcomes(passed=1)
    assert checkout.servers() == []
    (verdict,) = project.result()["verdicts"]
    assert (verdict["metric"], verdict["reference_kind"]) == ("capacity", "against")
    assert verdict["rounds"] >= 1
