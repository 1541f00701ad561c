"""What a pull request may do to a suite's server is found by the metric that should see it, against its own commit.

Each test clones this repository, edits an app as a careless change would, and runs the suite with ``--against=HEAD``:
real servers side by side, some minutes each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.alone]

REPOSITORY = Path(__file__).parents[2]

TOLERANCES = "suites/tolerances.py"
CARD_LIKE = "throughput=0.1, p50=0.1, p90=0.2, p95=0.2, p99=0.3, batching_ratio=0.1"

MOSEC_APP = "suites/distilbert/apps/distilbert_mosec.py"
OPTIONS = "suites/distilbert/apps/distilbert_options.py"
MOSEC_TEST = "suites/distilbert/test_distilbert_mosec.py::test_distilbert[workers1-connections50]"

LITSERVE_APP = "suites/catdog/apps/catdog_litserve.py"
LITSERVE_TEST = "suites/catdog/test_catdog_serving.py::test_one_user_waits_for_a_batch_that_never_fills[timeout0.05]"

ANSWER = """        return labels if self._batched else labels[0]
"""
WRONG_ANSWER = """        self._answers = getattr(self, "_answers", 0) + len(labels)
        if self._answers % 1000 < len(labels):
            labels[0] = "POSITIVE" if labels[0] == "NEGATIVE" else "NEGATIVE"
        return labels if self._batched else labels[0]
"""

TOKENIZER = """        return self._encode(data)
"""
SLOW_TOKENIZER = """        import time

        end_ns = time.perf_counter_ns() + 3_000_000
        while time.perf_counter_ns() < end_ns:
            pass
        return self._encode(data)
"""

BUDGET_SECONDS = 600
"""Of a comparison: in a slow hour a round takes minutes."""

SECONDS = 1500
"""For all of it; only a hanging one takes so long."""


class PullRequest:
    """A clone whose checkout differs from its commit.

    Args:
        path: Where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(path)], check=True, timeout=60)
        # What the suites tolerate on a CPU is more than some of these faults cost.
        self.edit(TOLERANCES, "throughput=0.2, p50=0.35, p90=0.5, p95=0.5, p99=1.0, batching_ratio=0.25", CARD_LIKE)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace a text that stands in the file exactly once."""
        text = (self.path / file).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}"
        (self.path / file).write_text(text.replace(old, new), encoding="utf-8")

    def verdicts(self, *tests: str) -> tuple[dict[str, Any], str]:
        """Gate these tests against the commit; the verdict of each metric, and all that was printed."""
        options = [
            "--against=HEAD",
            "--gpu=cpu",
            "--gpuserve-json=out.json",
            f"--gpuserve-budget={BUDGET_SECONDS}",
            "-vv",
        ]
        command = [sys.executable, "-m", "pytest", *tests, *options]
        # The clone's own package, wherever ours is installed from; `-m` puts its folder first.
        environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "CI"}}
        done = subprocess.run(
            command, cwd=self.path, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
        (test,) = json.loads((self.path / "out.json").read_text())["tests"]
        return {each["metric"]: each for each in test["verdicts"]}, done.stdout


@pytest.fixture
def pull_request(tmp_path: Path) -> PullRequest:
    """A clone of what is committed here."""
    return PullRequest(tmp_path / "clone")


def test_a_fifth_more_compute_is_a_throughput_regression(pull_request: PullRequest) -> None:
    """Batches that take 20 % longer are REGRESSED by throughput, and the explanation finds it in the computation."""
    pull_request.edit(OPTIONS, 'os.environ.get("DISTILBERT_SLOWDOWN", "0")', 'os.environ.get("NO_SUCH", "0.2")')
    found, printed = pull_request.verdicts(MOSEC_TEST)
    assert found["throughput"]["verdict"] == "REGRESSED", printed
    assert "compute" in printed


def test_disabled_batching_is_a_batching_regression(pull_request: PullRequest) -> None:
    """A batch size of one, though the workload asks for no other, is REGRESSED by the batching ratio: 32 times less."""
    pull_request.edit(OPTIONS, 'default=32, help="most requests', 'default=1, help="most requests')
    found, printed = pull_request.verdicts(MOSEC_TEST)
    assert found["batching_ratio"]["verdict"] == "REGRESSED", printed


def test_ten_times_the_queue_delay_is_a_latency_regression(pull_request: PullRequest) -> None:
    """A batch that waits for ten times as long is REGRESSED by the median latency of a user who is alone."""
    pull_request.edit(LITSERVE_APP, "batch_timeout=options.batch_timeout", "batch_timeout=10 * options.batch_timeout")
    found, printed = pull_request.verdicts(LITSERVE_TEST)
    assert found["latency.p50"]["verdict"] == "REGRESSED", printed


def test_one_wrong_answer_in_a_thousand_is_invalid(pull_request: PullRequest) -> None:
    """A label that is swapped once in a thousand answers makes the run INVALID, whatever its speed."""
    pull_request.edit(MOSEC_APP, ANSWER, WRONG_ANSWER)
    found, printed = pull_request.verdicts(MOSEC_TEST)
    assert {each["verdict"] for each in found.values()} == {"INVALID"}, printed
    assert "wrong answer" in printed


def test_a_slow_tokenizer_is_a_throughput_regression(pull_request: PullRequest) -> None:
    """Where tokenizing becomes the bottleneck throughput is REGRESSED, and the explanation names that stage."""
    pull_request.edit(MOSEC_APP, TOKENIZER, SLOW_TOKENIZER)
    found, printed = pull_request.verdicts(MOSEC_TEST)
    # The test ends with what it asserts first, and batches are smaller too when requests come to them one by one.
    assert "REGRESSED" in {found[name]["verdict"] for name in ("batching_ratio", "throughput") if name in found}, (
        printed
    )
    assert "Preprocess" in printed
