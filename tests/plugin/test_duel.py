"""``duel(a, b)``: two servers in one test, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.units import format_ratio
from tests.plugin.conftest import JSON, says_no_traceback, text_of

if TYPE_CHECKING:
    from tests.plugin.conftest import Checkout, Project

TEST = """
import pytest

pytestmark = pytest.mark.gpuserve(throughput=0.1, p50=0.1, batching_ratio=0.1)

@pytest.fixture(scope="module")
def new(mosec_server):
    return mosec_server("new.py")

@pytest.fixture(scope="module")
def old(mosec_server):
    return mosec_server("app.py")

def test_it(new, old, duel, load, baseline):
    fox = {{"body": b"fox", "expect": b"FOX"}}
    a, b = new.post("/inference", **fox), old.post("/inference", **fox)
    d = duel(a, b, concurrency=8)
    {body}
"""


def write(project: Project, body: str, *, speed: float) -> None:
    """Write a test with a duel of a server that is so fast against one of speed 1."""
    project.speed(1)
    project.speed(speed, app="new.py")
    project.test_file.write_text(TEST.format(body=body))


def test_a_faster_first_server_passes(project: Project, checkout: Checkout) -> None:
    """10 % faster passes a limit of 5 % without a baseline, and leaves no server."""
    write(project, "assert d.throughput >= 1.05\n    assert d.latency.p50 <= 0.95", speed=1.1)
    project.run(JSON).assert_outcomes(passed=1)
    throughput, p50 = project.result()["verdicts"]
    assert throughput["verdict"] == p50["verdict"] == "PASS"
    assert throughput["reference_kind"] == "duel"
    assert throughput["value"] == pytest.approx(1.1, abs=0.02)
    assert p50["value"] == pytest.approx(1 / 1.1, abs=0.02)
    assert project.result()["run"]["base"]["throughput"] < project.result()["run"]["throughput"]
    assert not project.baseline.exists()
    assert checkout.left_behind() == []


def test_equal_servers_are_not_faster(project: Project) -> None:
    """Equal servers fail a limit of 5 % with exit code 1, and the explanation names the ratio and the limit."""
    write(project, "assert d.throughput >= 1.05", speed=1.0)
    result = project.run(JSON)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (verdict,) = project.result()["verdicts"]
    ratio = format_ratio(verdict["value"])
    result.stdout.fnmatch_lines(
        [f"*assert REGRESSED: throughput is {ratio} *1.05*", f"*test_it*throughput*{ratio}*at least 1.05*REGRESSED"]
    )
    assert "--baseline-update" not in text_of(result)


def test_a_server_that_does_not_start_fails_its_duel(project: Project, checkout: Checkout) -> None:
    """Both servers are needed, so that ``--on-missing=skip`` does not skip."""
    write(project, "assert d.throughput >= 1.05", speed=1.1)
    project.speed(0)
    result = project.run("--on-missing=skip")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "no weights here" in text_of(result)
    assert says_no_traceback(result)
    assert checkout.left_behind() == []
