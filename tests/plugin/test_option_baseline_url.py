"""`--baseline-dir` with an address: read through, written with care, and every failure of the storage told."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.fakes.own_locks import LOCKS_VARIABLE
from tests.fakes.s3_server import S3, SECRET, s3_server
from tests.plugin.conftest import says_no_traceback, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.plugin.conftest import Project

QUICK = {"config_kwargs": {"connect_timeout": 1, "read_timeout": 1, "retries": {"total_max_attempts": 1}}}
"""So that a test need not wait as long as a run would."""

FILE = "cpu/perf/test_perf.json"

MEANWHILE = """

@pytest.fixture(autouse=True)
def meanwhile():
    yield
    import os, subprocess, sys
    if "INNER" not in os.environ and not os.path.exists("once"):
        open("once", "w").close()
        subprocess.run({command!r}, env={{**os.environ, "INNER": "1", **{environment!r}}}, check=True)
"""
"""After the first test, and before it is recorded, something else happens."""


@pytest.fixture(scope="module")
def running() -> Iterator[S3]:
    """An S3, once for all tests of this file."""
    with s3_server() as running:
        yield running


@pytest.fixture
def s3(running: S3, project: Project) -> S3:
    """It, without faults, as runs of the project find it."""
    running.faults()
    project.environment.update(running.environment)
    project.environment["FSSPEC_S3"] = json.dumps(QUICK)
    return running


@pytest.fixture
def url(s3: S3) -> str:
    """A folder in a bucket of its own."""
    bucket = f"bucket-{uuid4().hex}"
    s3.put(bucket)
    return f"s3://{bucket}/baselines"


def path_of(url: str) -> str:
    """Where the project's baseline file is in the server."""
    return f"{url}/{FILE}".removeprefix("s3://")


def entries(s3: S3, url: str) -> list[str]:
    """The names of the entries of the project's baseline file in the storage."""
    data = s3.get(path_of(url))
    assert data is not None
    return sorted(json.loads(data)["entries"])


def then(project: Project, *command: str, **environment: str) -> None:
    """Let a command run between a test and its recording."""
    text = MEANWHILE.format(command=list(command), environment=environment)
    project.test_file.write_text(project.test_file.read_text() + text)


def test_baselines_are_gated_at_an_address(project: Project, s3: S3, url: str, recorded: Path) -> None:
    """All is as with a folder, but named by its address; a run that records nothing writes nothing."""
    s3.put(path_of(url), recorded.read_bytes())
    s3.faults()
    project.ini(baseline_dir=url)
    project.speed(0.5)
    result = project.run("--no-confirm")
    result.assert_outcomes(failed=1)
    assert "REGRESSED: throughput" in text_of(result)
    result.stdout.fnmatch_lines([f"*gating against {url}/cpu (1 entry*", f"*baselines: {url}/cpu"])
    assert not [each for each in s3.faults() if not each.startswith(("GET", "HEAD", "POST"))]


def test_baselines_are_recorded_at_an_address_and_read_offline(project: Project, s3: S3, url: str) -> None:
    """They are found again; a storage that does not answer ends a run, unless it takes what was fetched before."""
    written = project.run("--baseline-update", f"--baseline-dir={url}")
    written.assert_outcomes(passed=1)
    written.stdout.fnmatch_lines([f"*recording into {url}/cpu (no entries)*", f"*test_it: recorded * in {url}/{FILE}"])
    assert entries(s3, url) == ["test_it"]
    assert not (project.path / "baselines").exists()

    s3.faults(silent=True)
    result = project.run(f"--baseline-dir={url}")
    assert result.ret == 4
    text = text_of(result)
    assert f"--baseline-dir: {url} cannot be listed" in text
    assert "--baseline-offline takes what was fetched at" in text
    assert says_no_traceback(result)

    offline = project.run(f"--baseline-dir={url}", "--baseline-offline")
    offline.assert_outcomes(passed=1)
    offline.stdout.re_match_lines([rf".*gating against {url}/cpu \(1 entry.*", r"baselines as of 20.*"])


def test_no_storage_is_asked_without_need(project: Project, s3: S3, url: str, tmp_path: Path) -> None:
    """``file://`` is a folder like any other: no copy, no library; tests that measure nothing need no answer."""
    (project.path / "conftest.py").write_text(
        "import sys\ndef pytest_unconfigure():\n    print('FSSPEC', 'fsspec' in sys.modules, 's3fs' in sys.modules)\n"
    )
    result = project.run("--baseline-update", f"--baseline-dir=file://{tmp_path}/elsewhere")
    result.assert_outcomes(passed=1)
    assert (tmp_path / "elsewhere" / FILE).exists()
    assert "FSSPEC False False" in text_of(result)
    project.test_file.write_text("def test_it(device):\n    assert device.name == 'cpu'\n")
    s3.faults(silent=True)
    result = project.run(f"--baseline-dir={url}")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"*gating against {url}/cpu, at most *"])
    assert not s3.faults()


def test_two_runs_do_not_overwrite_each_other(project: Project, s3: S3, url: str, tmp_path: Path) -> None:
    """Two runs of pytest at once: of different tests both entries are kept, of the same one the second is refused."""
    loads = "(server, load, baseline):\n    test_it(server, load, baseline)\n"
    project.test_file.write_text(f"{project.test_file.read_text()}\n\ndef test_mine{loads}\n\ndef test_other{loads}")
    update = ("--baseline-update", f"--baseline-dir={url}")
    then(project, *project.command(*update, "-k", "test_it or test_other"), **{LOCKS_VARIABLE: str(tmp_path)})
    result = project.run(*update, "-k", "test_it or test_mine")
    result.assert_outcomes(passed=2, errors=1, deselected=1)
    assert result.ret == 1
    text = text_of(result)
    assert f"test_it in {url}/{FILE} is not recorded" in text
    assert "another runner has recorded it" in text
    assert "on host 'test-host'" in text
    assert f"test_mine: recorded (2 sessions) in {url}" in text
    assert says_no_traceback(result)
    assert entries(s3, url) == ["test_it", "test_mine", "test_other"]


def test_what_cannot_be_written_fails_its_test(project: Project, s3: S3, url: str) -> None:
    """Access that is denied at the end is told with the file, the cause and what helps."""
    deny = f'import urllib.request as u; u.urlopen(u.Request({s3.endpoint + "/-faults"!r}, b\'{{"denied": ["PUT"]}}\'))'
    then(project, sys.executable, "-c", deny)
    result = project.run("--baseline-update", f"--baseline-dir={url}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = text_of(result)
    assert f"{url}/{FILE} cannot be written" in text
    assert "PermissionError" in text
    assert "is not kept: run it again" in text
    assert says_no_traceback(result)
    assert SECRET not in text


def test_a_half_written_file_fails_its_test(project: Project, s3: S3, url: str, recorded: Path) -> None:
    """It is an error that names the address, and neither MISSING nor a pass."""
    s3.put(path_of(url), recorded.read_bytes()[:-100])
    result = project.run(f"--baseline-dir={url}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert f"baseline file {url}/{FILE} is not whole JSON" in text_of(result)
    assert "MISSING" not in text_of(result)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--baseline-dir=s3://me:hunter22@bucket/x"], "there is a password in the address"),
        (["--baseline-offline"], "--baseline-offline is for baselines of an address"),
        (["--baseline-dir=s3://b/x", "--baseline-offline", "--baseline-update"], "exclude each other"),
        (["--baseline-dir=gs://bucket/x"], "baselines are kept in folders and in S3"),
    ],
)
def test_wrong_options_are_usage_errors(project: Project, arguments: list[str], said: str) -> None:
    """Exit code 4 with what is wrong, before anything is measured, and without what may be secret."""
    result = project.run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in text_of(result)
    assert "hunter22" not in text_of(result)
    assert says_no_traceback(result)
