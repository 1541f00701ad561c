"""Whole runs against published numbers: on the card that they are of, on another one, and beside another build."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.nvml import cards
from tests.plugin.conftest import Checkout, says_no_traceback, text_of
from tests.support.published_files import published_file, record

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project

JSON = "--gpuserve-json=out.json"

TEST = """
import pytest

@pytest.mark.gpuserve(throughput=0.1)
def test_it(mosec_server, load{fixtures}, published):
    number = published({keys})
    run = load(mosec_server("app.py").post("/inference", body=b"fox", expect=b"FOX"), concurrency=8, seconds=2)
    {assertion}
"""

THROUGHPUT = "assert run.throughput >= number.throughput"


@pytest.fixture
def project_on_t4(project: Project, library: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project on a machine with a T4, of which numbers were published: 1400/s, p50 6 ms, no p99."""
    folder = tmp_path_factory.mktemp("card")
    environment = cards.write(cards.Script((cards.T4,)), folder, library=library)
    project.environment.update({name: environment[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_SCRIPT")})
    project.environment["CUDA_VISIBLE_DEVICES"] = None
    publish(project)
    write(project)
    return project


def publish(project: Project, *, suite: str = "perf", throughput: float = 1400.0, **changes: Any) -> Path:  # noqa: ANN401 -- fields of a record
    """Let numbers be published for a T4; the scripted build answers 1600 requests a second, in 5 ms."""
    path = project.path / "baselines" / "T4" / "published" / f"{suite}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = record(
        keys={"system": "mosec", "batch": 1, "concurrency": 8},
        values={"throughput": throughput, "latency.p50": 0.006},
        printed={"throughput": throughput, "unit": "requests/s"},
    )
    path.write_text(json.dumps(published_file({**plain, **changes})))
    return path


def write(project: Project, assertion: str = THROUGHPUT, *, keys: str = 'system="mosec"', fixtures: str = "") -> None:
    """Write the test."""
    project.write()
    project.test_file.write_text(TEST.format(assertion=assertion, keys=keys, fixtures=fixtures))


def test_a_run_that_reaches_it_passes(project_on_t4: Project) -> None:
    """The table and the JSON result have the published number, where it is from, and its bias.

    Up to the marker's tolerance: at the default one 1600/s would not do.
    """
    publish(project_on_t4, throughput=1700.0)
    write(project_on_t4, "assert run.throughput >= number.throughput and run.latency.p50 <= number.latency.p50")
    result = project_on_t4.run("--gpu=T4", JSON)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*latency.p50 * published 6.00 ms * PASS", "*throughput * published 1700/s * PASS"])
    result.stdout.fnmatch_lines(
        [
            "PASS: published: someone/bench results/bert.md at 7569dd7, line 79; hey: hey -c 50*",
            "PASS: bias: the card was warm*",
            "PASS: a published number has no samples*",
        ]
    )
    found = project_on_t4.result()["verdicts"]
    assert [(each["metric"], each["reference_kind"], each["reference"], each["interval"]) for each in found] == [
        ("throughput", "published", 1700.0, None),
        ("latency.p50", "published", 0.006, None),
    ]
    assert all("bias: the card was warm" in each["reasons"] for each in found)
    assert "unused" not in text_of(result)


def test_a_run_that_does_not_fails_with_its_provenance(project_on_t4: Project) -> None:
    """The failed assertion says what was published, where, and what is wrong with it; nothing offers to record it."""
    publish(project_on_t4, throughput=2000.0)
    result = project_on_t4.run("--gpu=T4", JSON)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E*REGRESSED: throughput is 1[56]*/s, published 2000/s: -*% (tolerance 10 %)",
            "E*published: someone/bench results/bert.md*",
            "E*bias: the card was warm*",
        ]
    )
    assert "--baseline-update" not in text_of(result)
    (only,) = project_on_t4.result()["verdicts"]
    assert only["verdict"] == "REGRESSED"


def test_on_cpu_it_is_skipped_before_anything_is_measured(project_on_t4: Project) -> None:
    """The reason names the devices that have numbers."""
    result = project_on_t4.run("--gpu=cpu", "-rs", JSON)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*SKIPPED*no number was published for cpu in perf with system='mosec'; there are: T4"])
    assert not json.loads((project_on_t4.path / "out.json").read_text())["tests"][0]["run"]


def test_a_wrong_keyword_fails_on_every_device(project_on_t4: Project) -> None:
    """It does not hide behind the skip, and is told without a traceback."""
    write(project_on_t4, keys="workerz=1")
    result = project_on_t4.run("--gpu=cpu")
    result.assert_outcomes(failed=1)
    assert says_no_traceback(result)
    result.stdout.fnmatch_lines(["*test_perf.py:*: published(workerz=...): no entry of perf has such a keyword"])


def test_an_absent_p99_is_told(project_on_t4: Project) -> None:
    """Neither a pass nor a skip: there is nothing to compare with, and what was printed is listed."""
    write(project_on_t4, "assert run.latency.p99 <= number.latency.p99")
    result = project_on_t4.run("--gpu=T4")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*latency.p99 was not printed in results/bert.md line 79*", "*printed: throughput,*p50"]
    )


def test_another_load_is_missing_and_fails(project_on_t4: Project) -> None:
    """A number of 50 users says nothing of 8, whatever a missing baseline does."""
    publish(project_on_t4, keys={"system": "mosec", "batch": 1, "concurrency": 50})
    result = project_on_t4.run("--gpu=T4", "--on-missing=skip", JSON)
    result.assert_outcomes(failed=1)
    (only,) = project_on_t4.result()["verdicts"]
    assert only["verdict"] == "MISSING"
    result.stdout.fnmatch_lines(["E*the published number is of a closed loop of 50 users*"])


def test_beside_another_build_the_candidate_is_compared(
    project_on_t4: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Under --against what was measured of the candidate in all rounds is pooled: a build of half the speed fails."""
    project = project_on_t4
    write(project, f"assert run.throughput >= baseline.throughput\n    {THROUGHPUT}", fixtures=", baseline")
    Checkout(project, tmp_path_factory.mktemp("temporary"))
    result = project.run("--gpu=T4", "--against=HEAD", JSON)
    assert result.ret != pytest.ExitCode.USAGE_ERROR, text_of(result)
    found = {each["reference_kind"]: each for each in project.result()["verdicts"]}
    assert found["published"]["verdict"] == "PASS", text_of(result)
    assert found["published"]["value"] == pytest.approx(project.result()["run"]["throughput"])


def test_it_claims_nothing_of_the_family(project_on_t4: Project) -> None:
    """Published numbers beside a baseline's do not make its verdicts harder to reach."""
    project_on_t4.write()
    alone = TEST.format(assertion=THROUGHPUT, keys="", fixtures="").replace("test_it", "test_published")
    project_on_t4.test_file.write_text(project_on_t4.test_file.read_text() + alone)
    (project_on_t4.path / "conftest.py").write_text(
        "import pytest\n"
        "from pytest_gpuserve.comparisons import planned_comparisons\n"
        "@pytest.hookimpl(trylast=True)\n"
        "def pytest_collection_finish(session):\n"
        "    print('PLANNED', planned_comparisons(session.items), 'OF', len(session.items))\n"
    )
    result = project_on_t4.run("--gpu=T4", "-s", "--baseline-update")
    result.stdout.fnmatch_lines(["*PLANNED 1 OF 2*"])
    result.assert_outcomes(passed=2)


def test_a_recording_leaves_it_alone(project_on_t4: Project) -> None:
    """A recording run writes its own file beside it, calls nothing of it unused, and removes nothing of it."""
    project = project_on_t4
    path = publish(project)
    before = path.read_bytes()
    write(project, f"assert run.throughput >= baseline.throughput\n    {THROUGHPUT}", fixtures=", baseline")
    for _ in range(2):
        result = project.run("--gpu=T4", "--baseline-update")
        result.assert_outcomes(passed=1)
        assert "unused" not in text_of(result)
    project.run("--gpu=T4").assert_outcomes(passed=1)
    assert path.read_bytes() == before
    assert sorted(file.name for file in (project.path / "baselines" / "T4").rglob("*.json")) == [
        "perf.json",
        "test_perf.json",
    ]


def test_a_folder_of_published_numbers_alone_is_no_baseline_set(project_on_t4: Project) -> None:
    """Where a card is asked for that is not there, only sets that were recorded are named."""
    other = project_on_t4.path / "baselines" / "A30" / "perf"
    other.mkdir(parents=True)
    (other / "test_perf.json").write_text("{}")
    result = project_on_t4.run("--gpu=H100")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "baseline sets: A30\n" in text_of(result)
