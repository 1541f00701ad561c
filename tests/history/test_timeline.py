"""The history of baselines: a point for each commit that measured, and a line only of what is comparable."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.compare.loads import LoadKey
from pytest_gpuserve.history import __main__ as command
from pytest_gpuserve.history.__main__ import BLOCKS, fits, main
from tests.support.baseline_repository import (
    FILE,
    TEST,
    WORKLOAD,
    BaselineRepository,
    anchored_on,
    entry_of,
    on_device,
    result_text,
)
from tests.support.html_page import Page

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.history.conftest import Said

    Lines = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def lines(tmp_path: Path, said: Said) -> Lines:
    """Runs the command with these results by name: the lines of throughput that it drew, each with the notes."""

    def run(*arguments: str, **results: str) -> list[dict[str, Any]]:
        for name, text in results.items():
            (tmp_path / f"{name}.json").write_text(text)
        files = [str(tmp_path / f"{name}.json") for name in results]
        status, text = said("--json", *files, *arguments)
        assert status == 0
        plain = json.loads(text)
        return [{**line, "notes": plain["notes"]} for line in plain["lines"]]

    return run


def values(line: dict[str, Any]) -> list[float]:
    """The values of a line."""
    return [round(point["value"]) for point in line["points"]]


def test_each_commit_that_measured_is_a_point(repository: BaselineRepository, lines: Lines) -> None:
    """A point has the commit, its day, the value over all sessions, and their range; of one session that is null."""
    speeds = ([1.0, 1.1], [0.5, 0.55], [1.0])
    hashes = [repository.record(entry_of(each, day=day), day) for day, each in enumerate(speeds, 1)]
    repository.commit(4)
    (line,) = lines()
    assert (line["device"], line["file"], line["test"], line["host"]) == ("cpu", FILE, TEST, "host-a")
    assert (line["metric"], line["unit"], line["parts"], line["changes"]) == ("throughput", "1/s", 1, None)
    assert [(point["commit"], point["label"]) for point in line["points"]] == [
        (name, f"{name[:7]} 2025-01-0{day}") for day, name in enumerate(hashes, 1)
    ]
    first, second, alone = line["points"]
    assert (first["low"], first["high"]) == (pytest.approx(1000, rel=1e-4), pytest.approx(1100, rel=1e-4))
    assert first["low"] < first["value"] < first["high"]
    assert second["value"] == pytest.approx(first["value"] / 2, rel=1e-3)
    assert (first["sessions"], alone["sessions"], alone["low"], alone["high"]) == (2, 1, None, None)


def test_sessions_are_counted_once(repository: BaselineRepository, lines: Lines) -> None:
    """What is added to an entry makes a point; shortening, editing or going back makes none."""
    first, last = entry_of([1.0]), entry_of([0.9], day=6)
    grown = entry_of([1.0])
    grown.sessions.extend(entry_of([0.8], day=2).sessions)
    edited = msgspec.structs.replace(grown, reason="edited")
    shortened = msgspec.structs.replace(grown, sessions=grown.sessions[1:])
    for day, entry in enumerate((first, grown, edited, shortened, first, last), 1):
        repository.record(entry, day)
    (line,) = lines()
    assert values(line) == [1000, 800, 900]


def test_a_metric_on_request_is_drawn_where_it_is_anchored(
    repository: BaselineRepository, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What a load's test compares is drawn without being named, from before it was anchored too; of others not."""
    repository.record(entry_of([1.0]), 1)
    repository.record(anchored_on(entry_of([1.0], day=2, cold_start_seconds=3.0), "cold_start"), 2)
    repository.record(entry_of([1.0], day=3), 3, test="test_other", file="x/test_w.json")
    (tmp_path / "a.json").write_text(result_text([0.9], day=4))

    def drawn(*arguments: str) -> dict[tuple[str, str], list[float]]:
        assert main(["--no-change-points", "--json", *arguments]) == 0
        found = json.loads(capsys.readouterr().out)["lines"]
        return {(line["file"], line["metric"]): [point["value"] for point in line["points"]] for line in found}

    lines = drawn(str(tmp_path / "a.json"))
    assert lines[FILE, "cold_start"] == pytest.approx([1.5, 3.0, 1.5], rel=1e-3)
    assert ("x/test_w.json", "cold_start") not in lines
    assert {name for _, name in drawn("--metric", "ttft.p50", "--metric", "p50")} == {"latency.p50"}
    assert len(lines[FILE, "throughput"]) == 3
    assert len(lines["x/test_w.json", "throughput"]) == 1
    verdict = {
        "metric": "cold_start",
        "verdict": "PASS",
        "reference_kind": "baseline",
        "value": 1.5,
        "tolerance": 0.4,
    }
    plain = json.loads(result_text([0.9], day=5, nodeid="suites/x/test_w.py::test_other"))
    plain["tests"][0]["verdicts"] = [verdict]
    (tmp_path / "b.json").write_text(json.dumps(plain))
    assert len(drawn(str(tmp_path / "b.json"))["x/test_w.json", "cold_start"]) == 2


def test_a_merge_counts_by_what_it_brought(repository: BaselineRepository, lines: Lines) -> None:
    """A branch's commits are not points of the main line, its merge is one, at the day of the merge."""
    repository.record_each(1.0)
    repository.git("checkout", "--quiet", "-b", "feature")
    repository.record(entry_of([0.7], day=2), 2)
    repository.record(entry_of([0.6], day=3), 3)
    repository.git("checkout", "--quiet", "main")
    repository.record(entry_of([1.0]), 4, test="test_other", file="x/test_w.json")
    repository.git("merge", "--quiet", "--no-ff", "--message", "merge", "feature", day=5)
    merge = repository.git("rev-parse", "HEAD")
    (line,) = lines("--test=test_y")
    assert values(line) == [1000, 600]
    assert line["points"][-1]["label"] == f"{merge[:7]} 2025-01-05"


def test_results_stand_where_they_were_measured(repository: BaselineRepository, lines: Lines) -> None:
    """By their time, however they are named, last and with a note where nobody knows it; commits keep their order."""
    repository.record(entry_of([1.0]), 4)
    repository.record(entry_of([0.8], day=2), 2)
    with_a_letter = {**json.loads(result_text([0.9], day=3)), "at": "2025-01-03T00:00:00Z"}
    (line,) = lines(b=result_text([0.7, 0.71], day=6), a=json.dumps(with_a_letter))
    assert values(line) == [900, 1000, 800, 705]
    assert [point["label"] for point in line["points"]][::3] == ["a.json 2025-01-03", "b.json 2025-01-06"]
    assert line["points"][3]["low"] == pytest.approx(700, rel=1e-3)
    assert line["points"][3]["high"] == pytest.approx(710, rel=1e-3)
    assert line["notes"] == []
    plain = json.loads(result_text([0.5], samples=False))
    unknown = {"a": None, "b": "yesterday", "c": "2025-01-01T00:00:00"}
    (line,) = lines(**{name: json.dumps({**plain, "at": at}) for name, at in unknown.items()})
    assert [point["label"] for point in line["points"]][2:] == [f"{name}.json" for name in unknown]
    told = [note.partition(" does not say")[0] for note in line["notes"]]
    assert [file.rpartition("/")[2] for file in told] == [f"{name}.json" for name in unknown]


def test_a_file_is_followed_where_its_test_is(repository: BaselineRepository, lines: Lines) -> None:
    """A file that was moved, or moved and recorded anew at once, keeps its history; one with other tests does not."""
    repository.record(entry_of([1.0]), 1)
    repository.git("mv", f"baselines/cpu/{FILE}", "baselines/cpu/x/test_moved.json")
    repository.commit(2)
    for day, (speed, more) in enumerate(((0.9, {}), (0.8, {"test": "test_w"})), 3):
        repository.git("rm", "--quiet", "-r", "baselines")
        repository.record(entry_of([speed], day=day), day, file=f"z/test_{day}.json", **more)
    assert {line["file"]: values(line) for line in lines()} == {"z/test_3.json": [1000, 900], "z/test_4.json": [800]}


def test_another_workload_or_device_is_another_part(repository: BaselineRepository, lines: Lines) -> None:
    """The line is broken where the load or a card's power limit changes, and says so; a newer driver is none."""
    repository.record(entry_of([1.0]), 1)
    repository.record(entry_of([2.0], day=2, workload={**WORKLOAD, "concurrency": "80"}), 2)
    first, second = lines()
    assert (values(first), first["part"], first["parts"], first["begins_because"]) == ([1000], 1, 2, None)
    assert (values(second), second["part"]) == ([2000], 2)
    assert second["begins_because"] == "another workload: concurrency 50 -> 80"
    for day, (driver, watts) in enumerate((("550", 70.0), ("560", 70.0), ("560", 60.0)), 3):
        facts = {"name": "T4", "product": "Tesla T4", "driver": driver, "power_limit_watts": watts}
        repository.write({TEST: on_device(entry_of([1.0], day=day), **facts)}, device="T4")
        repository.commit(day)
    first, second = lines("--device=T4")
    assert (len(first["points"]), len(second["points"])) == (2, 1)
    assert second["begins_because"].startswith("another device: ")
    assert "power_limit_watts 70.0 -> 60.0" in second["begins_because"]


def test_hosts_have_lines_of_their_own(repository: BaselineRepository, lines: Lines) -> None:
    """Hosts that record by turns do not break each other's lines."""
    for day, (host, speed) in enumerate((("host-a", 1.0), ("host-b", 0.5)) * 2, 1):
        repository.record(entry_of([speed], day=day, host=host), day)
    assert {line["host"]: values(line) for line in lines()} == {"host-a": [1000, 1000], "host-b": [500, 500]}


def test_since_begins_with_what_was_there(repository: BaselineRepository, lines: Lines, said: Said) -> None:
    """The level at that commit is the first point, whoever made it; a commit of another branch is refused."""
    repository.record_each(1.0, 0.9, 0.8, 0.7)
    repository.git("tag", "v1", "HEAD~2")
    (line,) = lines("--since=v1")
    assert values(line) == [900, 800, 700]
    repository.git("checkout", "--quiet", "-b", "feature")
    repository.record(entry_of([0.7], day=5), 5)
    repository.git("checkout", "--quiet", "main")
    status, text = said("--since=feature")
    assert (status, "--since=$(git merge-base HEAD feature)" in text) == (2, True)


def test_a_reason_and_an_anchor_stand_where_they_are_new(repository: BaselineRepository, lines: Lines) -> None:
    """Both stay in the file until they are replaced, but are told once, in people's words."""
    reason = "a safer tokenizer"
    for day, (speed, told) in enumerate(((1.0, None), (0.8, reason), (0.81, reason)), 1):
        repository.record(anchored_on(entry_of([speed], day=day, reason=told), "throughput"), day)
    (line,) = lines()
    assert [point["notes"] for point in line["points"]] == [
        ["anchor recorded at 1000/s"],
        ["reason: a safer tokenizer"],
        [],
    ]


def test_what_cannot_be_read_is_left_out_and_said(repository: BaselineRepository, lines: Lines, said: Said) -> None:
    """A broken file, a newer one and a broken histogram have no point, and each has its note; the rest is drawn."""
    repository.record(entry_of([1.0]), 1)
    path = repository.baselines / "cpu" / FILE
    good = path.read_text()
    for day, bad in enumerate(
        ("{", good.replace('"schema": 2', '"schema": 3'), good.replace('"clean": true', '"clean": 7')), 2
    ):
        path.write_text(bad)
        repository.commit(day)
    repository.record(entry_of([0.9], day=5), 5)
    text = path.read_text()
    at = text.index('"latency": "') + len('"latency": "')
    path.write_text(f"{text[:at]}x{text[at:]}".replace("2025-01-05T00:00:00", "2025-01-06T00:00:00"))
    repository.commit(6)
    (line,) = lines()
    assert values(line) == [1000, 900]
    assert len(line["notes"]) == 4
    assert all("cannot be read and is left out" in note for note in line["notes"])
    assert said()[1].count("is left out") == 4
    assert "schema 3; this version reads schema 2" in line["notes"][1]


def test_of_a_shallow_clone_it_is_said(
    repository: BaselineRepository, lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there is drawn, and that there is more elsewhere is noted."""
    repository.record_each(1.0, 0.9, 0.8)
    repository.git("clone", "--quiet", "--depth=2", repository.root.as_uri(), str(tmp_path / "shallow"))
    monkeypatch.chdir(tmp_path / "shallow")
    (line,) = lines()
    assert values(line) == [900, 800]
    assert "git fetch --unshallow" in line["notes"][0]


def test_what_is_left_out_is_said(repository: BaselineRepository, lines: Lines) -> None:
    """A run that has a point already, an invalid one, one beside another server, and one of an unknown load."""
    repository.record(entry_of([1.0, 0.99], day=2), 2)
    plain = json.loads(result_text([1.0, 0.99], day=2))
    same = json.dumps(plain)
    del plain["tests"][0]["run"]["sessions_at"]
    (line,) = lines(
        same=same,
        older=json.dumps(plain),
        next=result_text([0.9], day=3),
        twice=result_text([0.9], day=3),
        bad=result_text([0.5], problems=["the client was late"]),
        beside=result_text([0.5], base={"name": "origin/main"}),
        unknown=result_text([0.5], workload=None),
    )
    assert values(line) == [995, 900]
    why = sorted(note.partition(" is left out: ")[2] for note in line["notes"])
    beside, *again, late, unknown = why
    assert again == ["its sessions have a point already"] * 3
    assert (beside, late) == ("it was measured beside origin/main", "the client was late")
    assert unknown.startswith("the file does not say what its workload was")


def test_what_is_no_measurement_adds_nothing(repository: BaselineRepository, lines: Lines) -> None:
    """Neither numbers that others printed nor a result without tests; a folder may be called like the device."""
    (repository.baselines / "cpu" / "published").mkdir(parents=True)
    (repository.baselines / "cpu" / "published" / "x.json").write_text("{}")
    repository.record(entry_of([1.0]), 1, file="cpu/test_y.json")
    result = json.loads(result_text([0.9], day=3, nodeid=f"suites/cpu/test_y.py::{TEST}"))
    (line,) = lines(a=json.dumps(result), idle=json.dumps({**result, "gpu": {}, "host": {}, "tests": []}))
    assert (line["file"], values(line), line["notes"]) == ("cpu/test_y.json", [1000, 900], [])


# -- the command


def test_the_text_is_for_people(repository: BaselineRepository, said: Said) -> None:
    """A line has title, chart, range and the last measurement, which is not said to be what counts now, and why."""
    first = entry_of([1.0, 1.1])
    repository.record(first, 1)
    hash_ = repository.record(entry_of([0.5], day=2, reason="worth it"), 2)
    repository.record(first, 3)
    _, told = said()
    assert "now" not in told
    title, signs, span, last, unlooked, reason = told.splitlines()[:6]
    assert title == f"cpu {FILE}::{TEST} throughput on host host-a"
    assert signs == "  █▁"
    assert span.startswith("  2 points, 500/s .. 10")
    assert last.endswith(f"; last measured 500/s at {hash_[:7]} 2025-01-02")
    assert unlooked == "  change points were not looked for"
    assert reason == f"  {hash_[:7]} 2025-01-02: reason: worth it"


def test_what_is_wrong_is_told(
    repository: BaselineRepository,
    lines: Lines,
    said: Said,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing to draw is exit status 1, a wrong argument or no history 2; without git results alone are drawn."""
    for before, arguments, status, says in (
        (None, [], 2, "git does not know the revision 'HEAD'"),
        (lambda: repository.commit(1), [], 1, "there is nothing to draw"),
        (lambda: repository.record(entry_of([1.0]), 2), ["--test=nothing"], 1, "there is nothing to draw"),
        (None, ["--device=T4"], 1, "there is nothing to draw"),
        (None, ["--since=nowhere"], 2, "git does not know the revision 'nowhere'"),
        (None, ["nowhere.json"], 2, "nowhere.json cannot be read"),
        (lambda: (tmp_path / "x.json").write_text("{"), [str(tmp_path / "x.json")], 2, "is no result of --gpuserve"),
        (None, ["--baseline-dir=/"], 2, "is not in the checkout"),
        (lambda: monkeypatch.chdir(tmp_path), [], 2, "the history of baselines needs git and a checkout"),
    ):
        if before is not None:
            before()
        found, text = said(*arguments)
        assert (found, says in text) == (status, True), text
    (line,) = lines(a=result_text([0.9]))
    assert values(line) == [900]
    assert line["notes"][0].startswith("no history of baselines: ")


def test_a_page_is_drawn_of_the_same_lines(
    repository: BaselineRepository, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--html`` draws each part of a line with the notes of its points, and masks secrets."""
    monkeypatch.setenv("A_TOKEN", "hunter22")
    repository.record(entry_of([1.0, 1.1], reason="hunter22"), 1)
    repository.record(entry_of([0.5], day=2, workload={"server": "triton"}), 2)
    page = tmp_path / "page.html"
    assert said(f"--html={page}")[0] == 0
    drawn = Page(page.read_text())
    assert "History of the baselines" in drawn.text
    assert drawn.titles == [f"cpu {FILE}::{TEST} throughput on host host-a, part {part} of 2" for part in (1, 2)]
    assert "another workload: concurrency 50 -> nothing, server mosec" in drawn.text
    assert "reason: <A_TOKEN>" in drawn.text
    assert "hunter22" not in page.read_text()
    assert said(f"--html={tmp_path}")[0] == 2


def test_texts_of_others_harm_nothing(
    repository: BaselineRepository, lines: Lines, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret that is a word of ours renames no field; what a terminal would obey is spelled out."""
    monkeypatch.setenv("A_TOKEN", "points")
    repository.record(entry_of([1.0], reason="more points"), 1, test="test_points")
    (line,) = lines()
    assert line["test"] == "test_<A_TOKEN>"
    assert line["points"][0]["notes"] == ["reason: more <A_TOKEN>"]
    name = "test_z[\x1b[2J]"
    repository.record(entry_of([1.0], reason="\x1b]0;x\x07"), 2, test=name)
    repository.record(entry_of([0.5], day=3, workload={"server": "\x1b[1m"}), 3, test=name)
    _, told = said("--test=test_z")
    assert not {"\x1b", "\x07"} & set(told)
    assert told.count(r"test_z[\x1b[2J]") == 2


def test_a_terminal_without_blocks_gets_plain_signs(
    repository: BaselineRepository, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ASCII log, or one of an encoding that nobody knows, shows a chart, not question marks."""
    known = {encoding: command._is_known(BLOCKS, encoding) for encoding in ("utf-8", "ascii", "latin-1", None, "odd")}
    assert known == {"utf-8": True, "ascii": False, "latin-1": False, None: False, "odd": False}
    repository.record_each(1.0, 0.5)
    monkeypatch.setattr(command, "_is_known", lambda signs, encoding: False)
    assert "  #_" in said()[1].splitlines()


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_pattern_is_a_text(file: str, name: str) -> None:
    """Every part of a name finds it, brackets and all, and a star stands for anything between two parts."""
    key = LoadKey("cpu", file, name)
    plain = f"{file}::{name}"
    assert fits(key, "")
    assert fits(key, name)
    assert fits(key, f"{plain[:3]}*{plain[-3:]}") or len(plain) < 6
    assert not fits(key, f"{plain}x")


def test_each_metric_is_what_a_baseline_says(
    repository: BaselineRepository, capsys: pytest.CaptureFixture[str]
) -> None:
    """A point's value is the number in the file's own summary, for every metric that it has."""
    path = repository.write({TEST: entry_of([1.0, 0.7, 1.3])})
    repository.commit(1)
    summary = json.loads(path.read_text())["summary"][TEST]
    assert main(["--json", "--no-change-points", *(f"--metric={name}" for name in summary)]) == 0
    drawn = {line["metric"]: line["points"][0] for line in json.loads(capsys.readouterr().out)["lines"]}
    assert {name: point["value"] for name, point in drawn.items()} == pytest.approx(summary, rel=1e-3)
    assert drawn["latency.p99"]["low"] == pytest.approx(0.010 / 1.3, rel=1e-3)
    assert drawn["latency.p99"]["high"] == pytest.approx(0.010 / 0.7, rel=1e-3)
