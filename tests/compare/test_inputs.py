"""What the arguments of a comparison may be: files, folders, revisions of git, addresses, and what is none of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_gpuserve.compare.loads import key_of
from pytest_gpuserve.comparison.baseline_store import BaselineStore
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.report.schema import is_result, read_result
from pytest_gpuserve.store.remote.folder import RemoteFolder
from tests.compare.conftest import SAME, SLOWER
from tests.support.baseline_repository import (
    FILE,
    NODEID,
    STEADY,
    TEST,
    WORKLOAD,
    BaselineRepository,
    entry_of,
    result_text,
)
from tests.support.builders import here

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.compare.conftest import Said

OTHER_LOAD = {**WORKLOAD, "concurrency": "80"}


# -- revisions


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("HEAD~1:", "HEAD:"),
        ("HEAD~1:", "baselines/cpu"),
        ("HEAD~1:baselines", "HEAD:baselines/"),
        ("HEAD~1:baselines/cpu", "baselines"),
        (f"HEAD~1:baselines/cpu/{FILE}", f"baselines/cpu/{FILE}"),
        (f"main~1:baselines/cpu/{FILE}", "main:"),
    ],
)
def test_revisions_are_read_as_they_were(repository: BaselineRepository, said: Said, a: str, b: str) -> None:
    """However the two states are named, the newer is held against the older; the other way round it is improved."""
    status, text = said(a, b)
    assert status == 1
    assert "REGRESSED" in text
    assert f"(commit {repository.git('rev-parse', 'HEAD~1')[:7]})" in text
    assert said(b, a)[0] == 0


def test_nothing_is_checked_out(repository: BaselineRepository, said: Said) -> None:
    """The checkout is as it was, with what was changed in it and not committed."""
    repository.write({TEST: entry_of(day=3)})
    (repository.root / "new").write_text("a file")
    before = (repository.git("status", "--porcelain"), repository.git("rev-parse", "HEAD"))
    assert said("HEAD~1:", "baselines")[0] == 0
    assert said("HEAD~1:", "HEAD:")[0] == 1
    assert (repository.git("status", "--porcelain"), repository.git("rev-parse", "HEAD")) == before


def test_other_places_in_a_revision_are_read(repository: BaselineRepository, said: Said) -> None:
    """``--baseline-dir`` says what ``REV:`` alone means, and ``REV:PATH`` may be a result; printed numbers are none."""
    repository.git("mv", "baselines", "numbers")
    (repository.root / "numbers" / "cpu" / "published").mkdir()
    (repository.root / "numbers" / "cpu" / "published" / "x.json").write_text("{}")
    (repository.root / "out.json").write_text(result_text())
    repository.commit(3)
    (repository.root / "out.json").unlink()
    assert said("HEAD:", "numbers")[0] == 2
    status, text = said("HEAD:", "numbers", "--baseline-dir=numbers")
    assert (status, SAME in text) == (0, True)
    assert said("HEAD~2:", "HEAD:out.json")[0] == 0


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("nowhere:", "git does not know the revision 'nowhere'"),
        (":", "git does not know the revision ''"),
        ("--output=x:", "error:"),
        ("^HEAD:", "git does not know the revision '^HEAD'"),
        ("HEAD:nowhere", "HEAD has no baselines in nowhere"),
        ("nowhere", "there is no file or folder nowhere"),
        ("HEAD", "HEAD~5:"),
    ],
)
def test_what_is_not_there_is_told(repository: BaselineRepository, said: Said, argument: str, says: str) -> None:
    """A revision, folder or file that does not exist ends with status 2, and how they are written."""
    status, text = said(argument, "baselines")
    assert (status, says in text) == (2, True)


def test_where_there_is_no_history_it_is_said(
    repository: BaselineRepository, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shallow clone is told to fetch, no checkout and no git are named, and files are compared without git."""
    repository.git("clone", "--quiet", "--depth=1", repository.root.as_uri(), str(tmp_path / "shallow"))
    monkeypatch.chdir(tmp_path / "shallow")
    status, text = said("HEAD~1:", "baselines")
    assert (status, "git fetch --unshallow" in text) == (2, True)
    monkeypatch.chdir(tmp_path)
    status, text = said("HEAD:", "HEAD:")
    assert (status, "not a git repository" in text) == (2, True)
    monkeypatch.chdir(repository.root)
    monkeypatch.setenv("PATH", str(repository.root))
    assert said("baselines", "baselines")[0] == 0
    status, text = said("HEAD:", "baselines")
    assert (status, "needs git and a checkout" in text, "git cannot be asked" in text) == (2, True, True)


# -- shared storage, whose every trouble is told


@pytest.fixture
def bucket(repository: BaselineRepository, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a folder, kept in memory, with the baseline as it was before, and with published numbers."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url, **_: (memory, f"/{url.removeprefix('s3://')}"))
    before = BaselineRepository(repository.root.parent / "before")
    place = uuid4().hex
    put(f"{place}/baselines/cpu/{FILE}", before.write({TEST: entry_of()}).read_bytes())
    put(f"{place}/baselines/T4/published/x.json", b"{}")
    yield f"s3://{place}/baselines"
    memory.rm(f"/{place}", recursive=True)


def put(path: str, data: bytes) -> None:
    """Let the storage hold a file."""
    import fsspec

    fsspec.filesystem("memory").pipe_file(f"/{path}", data)


def test_an_address_is_a_side(repository: BaselineRepository, bucket: str, said: Said) -> None:
    """A folder, a baseline or a result, in either place, against local ones and itself; published numbers are none."""
    for other in ("baselines", "HEAD:"):
        status, text = said(bucket, other)
        assert status == 1
        assert "REGRESSED" in text
        assert f"A, the reference: {bucket}" in text
        assert said(other, bucket)[0] == 0
    one, result = f"{bucket}/cpu/{FILE}", f"{bucket}/out.json"
    put(result.removeprefix("s3://"), result_text(day=1).encode())
    for a, b in ((f"{bucket}/", bucket), (one, one), (one, bucket), (result, result)):
        status, text = said(a, b)
        assert (status, SAME in text) == (0, True)
    assert said(one, f"baselines/cpu/{FILE}")[0] == 1
    assert said(f"file://{repository.root / 'baselines'}", "baselines")[0] == 0


@pytest.mark.parametrize(
    ("below", "problem"),
    [
        ("/none", "there is no baseline in s3://"),
        ("/none.json", "there is no file s3://"),
        ("/cpu", "is a folder of one device's baselines"),
    ],
)
def test_what_a_storage_has_not_is_a_wrong_argument(bucket: str, said: Said, below: str, problem: str) -> None:
    """Exit status 2: there is nothing that could have been compared."""
    status, text = said(bucket + below, "baselines")
    assert (status, problem in text) == (2, True)


def test_a_storage_that_fails_is_told(bucket: str, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer, or a file that vanishes meanwhile, is exit status 2: what is left is not all there was."""

    def fails(*_: object, **__: object) -> None:
        raise ConnectionResetError("by peer")

    with monkeypatch.context() as patch:
        patch.setattr("fsspec.implementations.memory.MemoryFileSystem.find", fails)
        status, text = said("baselines", bucket)
    assert status == 2
    assert f"{bucket} cannot be listed\n  found: ConnectionResetError: by peer" in text
    monkeypatch.setattr(RemoteFolder, "fetch", lambda *_: None)
    status, text = said(bucket, "baselines")
    assert status == 2
    assert f"{bucket}/cpu/{FILE} was removed while {bucket} was read" in text


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize("address", ["https://to/ken77@host/x", "nosuchthing://x/y", "s3://bucket/../x", "file:///no"])
def test_an_address_that_cannot_be_used_is_a_wrong_argument(said: Said, address: str) -> None:
    """Said of the argument, not of an option of pytest; and a token in it is not told."""
    status, text = said(address, "baselines")
    assert (status, "--baseline-dir" in text, "ken77" in text) == (2, False, False)


# -- files that are none


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is not whole JSON"),
        ("[1]", "is not usable at the top"),
        ('{"schema": 1}', "is not usable at the top"),
        ('{"schema": 3, "tests": []}', "written by a newer pytest-gpuserve"),
        ('{"schema": 3, "entries": {}, "summary": {}}', "written by a newer pytest-gpuserve"),
        ('{"schema": 1, "tests": [{}]}', "is no result of --gpuserve-json that can be used"),
        ('{"schema": 1, "gpu": {}, "host": {}, "tests": []}', "has nothing to compare"),
        ('{"schema": 1, "summary": {}, "entries": {}}', "holds no baselines"),
        *(
            (json.dumps({**json.loads(result_text()), unnamed: {}}), "does not name the host and the device that it")
            for unnamed in ("gpu", "host")
        ),
        ("\ud800", "is not whole JSON"),
    ],
)
def test_a_file_that_cannot_be_used_is_told(
    repository: BaselineRepository, said: Said, content: str, says: str
) -> None:
    """It is named with what is wrong with it, whichever side it is, and never taken for an empty one."""
    (repository.root / "odd.json").write_bytes(content.encode(errors="surrogatepass"))
    for arguments in (("odd.json", "baselines"), ("baselines", "odd.json")):
        status, text = said(*arguments)
        assert (status, "odd.json" in text, says in text) == (2, True, True)


def test_a_damaged_file_of_a_folder_is_told(repository: BaselineRepository, said: Said) -> None:
    """Half a file is named as git does, a link to nowhere is no missing baseline, an edited number is not believed."""
    other = repository.baselines / "cpu" / "x" / "test_w.json"
    other.write_text("{")
    repository.commit(3)
    status, text = said("HEAD~1:", "HEAD:")
    assert status == 2
    assert "baseline file HEAD:baselines/cpu/x/test_w.json is not whole JSON" in text
    assert "/tmp" not in text
    other.unlink()
    other.symlink_to("nowhere")
    status, text = said("HEAD~1:", "baselines")
    assert (status, "test_w.json cannot be read" in text) == (2, True)
    other.unlink()
    path = repository.baselines / "cpu" / FILE
    path.write_text(path.read_text().replace('"throughput": 600.1', '"throughput": 900.1'))
    status, text = said("HEAD~1:", "baselines")
    assert (status, "disagrees with the samples below it" in text) == (2, True)


@settings(max_examples=200)
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode(errors="surrogatepass")))
def test_no_bytes_break_the_reading_of_a_result(data: bytes) -> None:
    """Whatever a file holds, it is read or refused, in words."""
    for content in (data, b'{"schema": 1, "tests": ' + data + b"}"):
        is_result(content)
        with pytest.raises(UsageProblem):
            read_result("x", content)


# -- results


def write(tmp_path: Path, name: str, text: str) -> str:
    """A file of this text; its path."""
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


@pytest.fixture
def texts_said(tmp_path: Path, said: Said) -> Said:
    """Compares two result files of these texts, ``a.json`` and ``b.json``."""
    return lambda a, b, *arguments: said(write(tmp_path, "a.json", a), write(tmp_path, "b.json", b), *arguments)


UNDECIDED = "not well: 6 INCONCLUSIVE"
NOT_COMPARED = "nothing could be compared: 6 MISSING"


def tokens(value: float) -> dict[str, float]:
    """Tokens an answer, as a result has them."""
    return {"value": value, "squared_error": 0.0, "windows": 16}


@pytest.mark.parametrize(
    ("new", "last", "says"),
    [
        ({"speeds": STEADY[::-1]}, "nothing is worse: 6 PASS", ""),
        ({}, "not well: 5 REGRESSED, 1 PASS", ""),
        ({"yardstick": {"interpreter": [1900.0] * 2}}, UNDECIDED, "B's machine is 1.9 times as fast as when A was"),
        ({"yardstick": {}}, UNDECIDED, "how fast B's machine is could not be measured"),
        ({"samples": False}, UNDECIDED, "B: the file keeps one number of it and no sessions"),
        ({"workload": OTHER_LOAD}, NOT_COMPARED, "another workload: concurrency: A has '50', B has '80'"),
        ({"answer_tokens": tokens(64.6)}, "not well: 5 REGRESSED, 1 PASS", ""),
        (
            {"answer_tokens": tokens(65)},
            "not well: 6 INVALID",
            "an answer has 65 tokens, and 64 in what it is",
        ),
        ({"ttft": {"p50": 0.01}}, "not well: 5 REGRESSED, 1 PASS", "B: how many tokens an answer has is not known"),
        ({"base": {"name": "main"}}, UNDECIDED, "B was measured side by side with another server, A alone: two number"),
    ],
)
def test_two_results_are_judged(tmp_path: Path, texts_said: Said, new: dict[str, Any], last: str, says: str) -> None:
    """As run and baseline are, if both have sessions of one load on machines of one speed; else nothing is well."""
    known: dict[str, Any] = {"answer_tokens": tokens(64)} if "answer_tokens" in new else {}
    status, text = texts_said(result_text(day=1, **known), result_text(**{"speeds": SLOWER, **new}))
    assert (status, text.splitlines()[-1]) == (int("worse" not in last), last)
    assert says in text
    assert f"A, the reference: {tmp_path / 'a.json'} (2025-01-01T00:00:00+00:00)" in text
    if "samples" in new:
        assert "-40.0 %" in text


def test_a_result_is_judged_by_a_baseline(repository: BaselineRepository, said: Said, tmp_path: Path) -> None:
    """The two kinds may be mixed: what changed of the server's source is no other workload."""
    new = write(tmp_path, "new.json", result_text(day=3))
    assert said("HEAD~1:", new)[0] == 0
    assert said(new, "HEAD:")[0] == 1


def test_a_result_that_does_not_say_its_workload_is_not_compared(
    repository: BaselineRepository, said: Said, tmp_path: Path
) -> None:
    """What an older version wrote may be of another load: two numbers, no change, and no allowance makes it well."""
    known = write(tmp_path, "known.json", result_text(day=3))
    unknown: tuple[dict[str, str] | None, ...] = (None, {})
    for workload in unknown:
        old = write(tmp_path, "old.json", result_text(workload=workload))
        for a, b, side in ((old, known, "A"), (known, old, "B"), (old, old, "A and B"), ("HEAD~1:", old, "B")):
            status, text = said(a, b, "--on-missing=skip")
            assert (status, text.splitlines()[-1]) == (1, NOT_COMPARED)
            assert f"MISSING: {side}: the file does not say what its workload was" in text
            assert "1000/s" in text
            assert "+0.0 %" not in text


@pytest.mark.parametrize("word", ["port", "models/a/config", "a.host"])
def test_a_workload_is_what_its_run_says(texts_said: Said, word: str) -> None:
    """Whatever a word of it is called, it must be the same; what else is told of server and load is not asked."""
    old = result_text(day=1, workload={**WORKLOAD, word: "one"})
    status, text = texts_said(old, result_text(workload={**WORKLOAD, word: "other"}))
    assert (status, f"another workload: {word}: A has 'one', B has 'other'" in text) == (1, True)
    assert texts_said(old, result_text(workload={**WORKLOAD, word: "one"}, server={}, load={}))[0] == 0


def test_a_run_is_not_judged_by_what_it_recorded(repository: BaselineRepository, said: Said, tmp_path: Path) -> None:
    """The result of the run that recorded a baseline is of the same sessions, however either file rounds them."""
    of_run = result_text(SLOWER, day=2)
    # A worker of several has its own occasion, but its sessions began when they began.
    of_worker = json.dumps({**json.loads(of_run), "at": "2025-01-02T00:00:09+00:00"})
    # Without their begins, the run's own tells.
    plain = json.loads(of_run)
    del plain["tests"][0]["run"]["sessions_at"]
    for text in (of_run, of_worker, json.dumps(plain)):
        result = write(tmp_path, "result.json", text)
        for arguments in (("HEAD:", result), (result, "HEAD:")):
            status, told = said(*arguments)
            assert status == 0
            assert SAME in told
            assert told.splitlines()[-1] == "nothing is worse: 1 unchanged"
        assert said("HEAD~1:", result)[0] == 1


def test_another_run_is_judged_by_a_baseline(repository: BaselineRepository, said: Said, tmp_path: Path) -> None:
    """Another time or host are other sessions with equal numbers too; a session more than the baseline is judged."""
    for day, host, last in ((3, "host-a", "nothing is worse: 6 PASS"), (2, "host-b", NOT_COMPARED)):
        _, told = said("HEAD:", write(tmp_path, "other.json", result_text(SLOWER, day=day, host=host)))
        assert "the same sessions" not in told
        assert told.splitlines()[-1] == last
    more = write(tmp_path, "more.json", result_text((*SLOWER, SLOWER[0]), day=2))
    _, text = said("HEAD:", more, "--json", "--metric=throughput")
    ((verdict,),) = [load["verdicts"] for load in json.loads(text)["loads"]]
    assert verdict["sessions"] == 1


@pytest.mark.parametrize(("cost", "is_read"), [(100.0, True), (-100.0, True), (710.0, False), (-101.0, False)])
def test_a_cost_that_cannot_be_is_refused(texts_said: Said, *, cost: float, is_read: bool) -> None:
    """A log beyond what any metric can be is told with its field, and what is within is computed with."""
    good, plain = result_text(day=1), json.loads(result_text())
    for point in plain["tests"][0]["run"]["points"]["throughput"]:
        point.update(y=cost, u=1e14)
    odd = json.dumps(plain)
    for texts in ((good, odd), (odd, good), (odd, odd)):
        status, text = texts_said(*texts, "--json")
        if is_read:
            assert status in {0, 1}
            json.loads(text)
        else:
            name = "ab"[texts.index(odd)]
            assert status == 2
            assert f"{name}.json is no result of --gpuserve-json that can be used" in text
            assert "run.points" in text


@pytest.mark.parametrize("value", [5e-324, 1000.0, 9e14])
def test_a_file_without_sessions_is_never_well(texts_said: Said, value: float) -> None:
    """Whatever number it holds, and beside itself."""
    good, odd = result_text(day=1, samples=False), result_text(samples=False, throughput=value)
    for texts in ((good, odd), (odd, good), (odd, odd)):
        status, text = texts_said(*texts, "--json")
        assert (status, json.loads(text)["well"]) == (1, False)


def test_an_invalid_run_is_not_compared(texts_said: Said) -> None:
    """What its own gate would conclude nothing from, or Ctrl-C cut short, is INVALID in either place, twice too."""
    good, bad = result_text(day=1), result_text(problems=["the client was late"])
    for texts, side in (((good, bad), "B"), ((bad, good), "A")):
        status, text = texts_said(*texts)
        assert (status, f"INVALID: {side}: the client was late (6 metrics)" in text) == (1, True)
    assert texts_said(bad, bad)[0] == 1
    cut = result_text().replace('"outcome": "passed"', '"outcome": "interrupted"')
    assert "INVALID: B: the test was interrupted" in texts_said(good, cut)[1]


def test_what_a_stored_baseline_judged_was_alone(texts_said: Said) -> None:
    """Its commit may have had the last word, side by side: the sessions that the file has are those before."""
    plain = json.loads(result_text(base={"name": "the baseline's commit (0123456789ab)"}))
    verdict = {
        "metric": "throughput",
        "verdict": "PASS",
        "reference_kind": "baseline",
        "value": 1000.0,
        "tolerance": 0.05,
    }
    plain["tests"][0]["verdicts"] = [verdict, {**verdict, "reference_kind": "against"}]
    status, text = texts_said(result_text(day=1), json.dumps(plain))
    assert (status, "two numbers" in text) == (0, False)


def test_a_test_of_which_nothing_is_known_is_not_well(texts_said: Said) -> None:
    """One that failed before its load is not there; two loads without a single number were not compared."""
    plain = json.loads(result_text())
    plain["tests"][0]["run"] = None
    status, text = texts_said(result_text(day=1), json.dumps(plain))
    assert (status, f"only in A: cpu {FILE}::{TEST}" in text) == (1, True)
    nothing: dict[str, Any] = {"throughput": None, "latency": {}, "batching_ratio": None, "cold_start_seconds": []}
    empty = result_text(day=1, samples=False, **nothing)
    status, text = texts_said(empty, empty)
    assert (status, "MISSING: throughput is not known of A and B" in text) == (1, True)


def test_what_a_result_says_of_streams_is_shown(texts_said: Said) -> None:
    """Where it has no sessions too."""
    known: dict[str, Any] = {"ttft": {"p50": 0.004}, "output_tokens_per_second": 880.0, "goodput": 60.0}
    one = result_text(day=1, samples=False, **known)
    named = [each for name in ("ttft_p50", "output_tokens_per_second", "goodput") for each in ("--metric", name)]
    _, text = texts_said(one, one, *named)
    for shown in ("ttft.p50  4.00 ms", "output_tokens_per_second     880/s", "goodput    60.0/s"):
        assert re.search(" +".join(shown.split()), text)


def with_tolerances(schema: int = 2, *, day: int = 2, **tolerances: float) -> str:
    """A result whose test has compared these metrics with its baseline, at these tolerances."""
    verdict = {"verdict": "PASS", "reference_kind": "baseline", "value": 1.0, "run": ""}
    plain = {**json.loads(result_text(day=day)), "schema": schema}
    plain["tests"][0]["verdicts"] = [
        {**verdict, "metric": metric.replace("__", "."), "tolerance": tolerance}
        for metric, tolerance in tolerances.items()
    ]
    return json.dumps(plain)


@pytest.mark.parametrize(
    ("schema", "written", "expected"),
    [
        (2, {"cold_start": 0.4, "throughput": 0.4}, {"cold_start": 0.4, "throughput": 0.4, "latency.p50": 0.05}),
        # In schema 1 it was a growth of the cost: 25 % of a throughput's is 20 % of it.
        (1, {"throughput": 0.25, "latency__p50": 0.25}, {"throughput": 0.2, "latency.p50": 0.25}),
    ],
)
def test_a_test_asks_for_metrics_and_tolerances(
    texts_said: Said, schema: int, written: dict[str, float], expected: dict[str, float]
) -> None:
    """A metric on request is compared where its test asked, at the test's tolerance, an older file's in its unit."""
    _, text = texts_said(*(with_tolerances(schema, day=day, **written) for day in (1, 2)), "--json")
    found = {each["metric"]: each["tolerance"] for each in json.loads(text)["loads"][0]["verdicts"]}
    assert {name: found[name] for name in expected} == expected


def test_a_tolerance_that_none_can_be_is_told(texts_said: Said) -> None:
    """No throughput falls by 150 %: a file that says so was changed by somebody."""
    status, text = texts_said(*[with_tolerances(throughput=1.5)] * 2)
    assert (status, "throughput cannot fall by 150%" in text) == (2, True)


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(
    st.lists(NAMES.filter(lambda name: name.strip(".")), min_size=1, max_size=4),
    NAMES,
    st.sampled_from(["", "load 2"]),
)
@example(["suites", "x", "test_y"], TEST, "")
def test_a_result_has_the_name_of_its_baseline(folders: list[str], test: str, label: str) -> None:
    """Where a run would keep a load's baseline is where a comparison looks for it."""
    nodeid = f"{'/'.join(folders)}.py::{test}"
    place = BaselineStore(Path("baselines/cpu"), here()).key_of(nodeid, label)
    key = key_of("cpu", nodeid, label)
    assert (Path("baselines/cpu") / key.file, key.name) == (place.path, place.entry)
    if nodeid == NODEID:
        assert (key.file, key.name) == (FILE, TEST)


# -- the process


def test_as_a_command(repository: BaselineRepository) -> None:
    """The module runs; whoever reads only the head of what it says gets no traceback."""
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": str(root), "PYTHONIOENCODING": "ascii"}
    asked = [sys.executable, "-m", "pytest_gpuserve.compare", "HEAD~1:", "HEAD:"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60, env=env)
    assert (done.returncode, done.stderr) == (1, "")
    assert "REGRESSED" in done.stdout
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as closed:
        cut = subprocess.run(asked, stdout=closed, stderr=subprocess.PIPE, check=False, timeout=60, env=env)
    assert (cut.returncode, cut.stderr) == (1, b"")
