"""Comparing two states of the baselines: the gate's own verdicts, and an exit status that never fails open."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.compare.command import main
from pytest_gpuserve.compare.side import baseline_key
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.store.baseline import read, write
from pytest_gpuserve.trial.stored_verdict import stored_judgement
from tests.support.baseline_repository import (
    FILE,
    STEADY,
    TEST,
    WORKLOAD,
    anchored_on,
    entry_of,
    on_device,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpuserve.store.schema import Entry

SLOWER = tuple(0.6 * speed for speed in STEADY)


class Two:
    """Two folders of baselines, in which the command is run."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def write(self, side: str, entries: Mapping[str, Entry], file: str = FILE, device: str = "cpu") -> Path:
        """Write a baseline file of a side."""
        path = self.folder / side / device / file
        write(path, entries)
        return path

    def compare(self, *arguments: str) -> tuple[int, str]:
        """The exit status, and what was said."""
        status = main(["a", "b", *arguments])
        captured = self._capsys.readouterr()
        return status, captured.out + captured.err

    def verdicts(self, *arguments: str) -> dict[str, str]:
        """The verdict of each metric of the one load."""
        main(["a", "b", "--json", *arguments])
        (load,) = json.loads(self._capsys.readouterr().out)["loads"]
        return {verdict["metric"]: verdict["verdict"] for verdict in load["verdicts"]}


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Two:
    """An empty project, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return Two(tmp_path, capsys)


def test_a_slower_build_is_regressed(two: Two) -> None:
    """What has become slower beyond doubt is said so, with its numbers, and the exit status is 1."""
    two.write("a", {TEST: entry_of()})
    two.write("b", {TEST: entry_of(SLOWER, day=2)})
    status, said = two.compare()
    assert status == 1
    row = next(line for line in said.splitlines() if "throughput" in line)
    assert all(word in row for word in ("600/s", "1000/s", "-40.0 %", "REGRESSED"))
    assert said.splitlines()[-1] == "not well: 5 REGRESSED, 1 PASS"


def test_the_same_build_passes(two: Two) -> None:
    """Other sessions of the same speed pass in every metric, with exit status 0."""
    two.write("a", {TEST: entry_of()})
    two.write("b", {TEST: entry_of(STEADY[::-1], day=2)})
    status, said = two.compare()
    assert (status, said.splitlines()[-1]) == (0, "nothing is worse: 6 PASS")


def test_a_faster_build_is_well(two: Two) -> None:
    """An improvement is no reason for an exit status but 0."""
    two.write("a", {TEST: entry_of(SLOWER)})
    two.write("b", {TEST: entry_of(day=2)})
    status, _ = two.compare()
    assert status == 0
    assert two.verdicts()["throughput"] == "IMPROVED"


def test_too_few_sessions_decide_nothing(two: Two) -> None:
    """One session beside one cannot tell a change of 3 % from chance: INCONCLUSIVE, which is no 0."""
    two.write("a", {TEST: entry_of([1.0])})
    two.write("b", {TEST: entry_of([0.97], day=2)})
    assert two.compare()[0] == 1
    assert set(two.verdicts("--metric=throughput").values()) == {"INCONCLUSIVE"}
    assert two.compare("--on-inconclusive=skip")[0] == 0


def test_too_few_requests_decide_nothing(two: Two) -> None:
    """A quantile behind which too few requests stand is not gated here either, and the reason names what would help."""
    two.write("a", {TEST: entry_of(requests=100)})
    two.write("b", {TEST: entry_of(day=2, requests=100)})
    verdicts = two.verdicts()
    assert (verdicts["throughput"], verdicts["latency.p99"]) == ("PASS", "INCONCLUSIVE")
    status, said = two.compare()
    assert status == 1
    assert "latency.p99 at a tolerance of 20 % needs 1000 requests a server start, and there is one of 200" in said
    assert "--tolerance=p99=FRACTION" in said


@pytest.mark.parametrize("speed", [0.6, 0.9, 0.97, 1.0, 1.3])
@pytest.mark.parametrize("count", [1, 4])
def test_the_verdict_is_the_gates(two: Two, speed: float, count: int) -> None:
    """What is said of two states of a baseline is what the gate says of a run against the older one."""
    path = two.write("a", {TEST: entry_of()})
    new = two.write("b", {TEST: entry_of([speed * each for each in STEADY[:count]], day=2)})
    sessions = read(new)[TEST].sessions
    for name in ("throughput", "latency.p50", "latency.p99", "batching_ratio"):
        metric = METRICS[name]
        expected = stored_judgement(
            metric, read(path)[TEST], sessions, host="host-a", tolerance=metric.default_tolerance
        )
        assert two.verdicts(f"--metric={name}") == {name: str(expected.verdict)}


def test_the_same_sessions_are_not_judged(two: Two) -> None:
    """A baseline that nobody recorded anew is unchanged, which is well, however few sessions it has."""
    two.write("a", {TEST: entry_of([1.0])})
    two.write("b", {TEST: entry_of([1.0])})
    status, said = two.compare()
    assert status == 0
    assert f"the same sessions in both: cpu {FILE}::{TEST}" in said


def test_sessions_of_both_sides_count_once(two: Two) -> None:
    """An entry that grew is judged by its new sessions alone: the old ones would vouch for themselves."""
    two.write("a", {TEST: entry_of()})
    grown = entry_of()
    grown.sessions.extend(entry_of(SLOWER, day=2).sessions)
    two.write("b", {TEST: grown})
    main(["a", "b", "--json", "--metric=throughput"])
    (load,) = json.loads(two._capsys.readouterr().out)["loads"]
    (verdict,) = load["verdicts"]
    assert (verdict["verdict"], verdict["sessions"]) == ("REGRESSED", len(SLOWER))
    assert verdict["change"] == pytest.approx(-0.4, rel=1e-4)


def test_what_is_gone_is_not_well(two: Two) -> None:
    """A load that the reference has and the other has not is named, and the exit status is 1 unless it is allowed."""
    two.write("a", {TEST: entry_of(), "test_gone": entry_of()})
    two.write("b", {TEST: entry_of(day=2)})
    status, said = two.compare()
    assert status == 1
    assert f"only in A: cpu {FILE}::test_gone" in said
    assert two.compare("--on-missing=skip")[0] == 0


def test_what_is_new_is_well(two: Two) -> None:
    """A load that only the other side has is named, and nothing more."""
    two.write("a", {TEST: entry_of()})
    two.write("b", {TEST: entry_of(day=2), "test_new": entry_of()})
    status, said = two.compare()
    assert status == 0
    assert f"only in B: cpu {FILE}::test_new" in said


def test_nothing_in_common_is_not_well(two: Two) -> None:
    """Where nothing was compared nothing is known, whatever is allowed to be missing."""
    two.write("a", {"test_one": entry_of()})
    two.write("b", {"test_other": entry_of()})
    status, said = two.compare("--on-missing=skip", "--on-inconclusive=skip")
    assert status == 1
    assert said.splitlines()[-1].startswith("nothing was compared: A and B have no load in common")


def test_nothing_that_can_be_compared_is_not_well(two: Two) -> None:
    """What may be missing is not all: where every load of both was measured otherwise, nothing was found out."""
    other = entry_of(SLOWER, day=2, workload={**WORKLOAD, "concurrency": "80"})
    two.write("a", {TEST: entry_of()})
    two.write("b", {TEST: other})
    skipping = ("--on-missing=skip", "--on-inconclusive=skip")
    status, said = two.compare(*skipping)
    assert status == 1
    assert said.splitlines()[-1] == "nothing could be compared: 6 MISSING"
    # A load beside it that is unchanged, or that was judged, is something.
    for day in (1, 2):
        two.write("a", {"test_w": entry_of()}, file="x/test_w.json")
        two.write("b", {"test_w": entry_of(day=day)}, file="x/test_w.json")
        assert two.compare(*skipping)[0] == 0
        assert two.compare("--on-inconclusive=skip")[0] == 1


def test_another_workload_is_not_compared(two: Two) -> None:
    """What differs is named, both numbers stand there, and no change is computed from them."""
    two.write("a", {TEST: entry_of()})
    two.write("b", {TEST: entry_of(day=2, workload={**WORKLOAD, "concurrency": "80"})})
    assert set(two.verdicts().values()) == {"MISSING"}
    status, said = two.compare()
    assert status == 1
    assert "another workload: concurrency: A has '50', B has '80'" in said
    assert " +0.0 %" not in said


def test_another_host_is_not_compared(two: Two) -> None:
    """Hosts differ by more than builds, so that one host's number says nothing of another's; both are named."""
    two.write("a", {TEST: entry_of()})
    two.write("b", {TEST: entry_of(day=2, host="host-b")})
    assert set(two.verdicts().values()) == {"MISSING"}
    assert "A was measured on host host-a, B on host-b" in two.compare()[1]


def test_each_host_of_the_other_side_is_judged(two: Two) -> None:
    """Of an entry that two hosts measured, each is compared by itself and named."""
    both = entry_of()
    both.sessions.extend(entry_of(host="host-b").sessions)
    new = entry_of(day=2)
    new.sessions.extend(entry_of(SLOWER, day=2, host="host-b").sessions)
    two.write("a", {TEST: both})
    two.write("b", {TEST: new})
    main(["a", "b", "--json", "--metric=throughput"])
    loads = json.loads(two._capsys.readouterr().out)["loads"]
    assert {load["host"]: load["verdicts"][0]["verdict"] for load in loads} == {
        "host-a": "PASS",
        "host-b": "REGRESSED",
    }


def test_a_host_that_measured_nothing_new_is_not_judged(two: Two) -> None:
    """Of an entry that one of two hosts recorded anew, that one is judged; the other is named as unchanged."""
    old, new = entry_of(), entry_of(day=2)
    for entry in (old, new):
        entry.sessions.extend(entry_of(day=1, host="host-b").sessions)
    two.write("a", {TEST: old})
    two.write("b", {TEST: new})
    status, said = two.compare("--json")
    plain = json.loads(said)
    assert [load["host"] for load in plain["loads"]] == ["host-a"]
    assert plain["unchanged"] == [{"device": "cpu", "file": FILE, "test": TEST, "host": "host-b"}]
    assert status == 0
    assert f"the same sessions in both: cpu {FILE}::{TEST} on host-b" in two.compare()[1]


def test_a_metric_on_request_is_compared_where_it_is_anchored(two: Two) -> None:
    """What a test asks for is compared without being named, whichever side tells so; what none asks for is not."""
    slow = entry_of(day=2, cold_start_seconds=6.0)
    for a, b in (
        (anchored_on(entry_of(), "cold_start", "throughput"), slow),
        (entry_of(), anchored_on(slow, "cold_start")),
    ):
        two.write("a", {TEST: a})
        two.write("b", {TEST: b})
        verdicts = two.verdicts()
        assert verdicts.pop("cold_start") == "REGRESSED"
        assert set(verdicts.values()) == {"PASS"}
        assert two.compare()[0] == 1
    two.write("a", {TEST: entry_of()})
    two.write("b", {TEST: slow})
    assert "cold_start" not in two.verdicts()


def test_another_device_is_not_compared(two: Two) -> None:
    """Where each side has one device and they differ, that is said of each load instead of finding none in common."""
    two.write("a", {TEST: on_device(entry_of(), name="T4", product="Tesla T4")}, device="T4")
    two.write("b", {TEST: on_device(entry_of(day=2), name="A30", product="NVIDIA A30")}, device="A30")
    assert set(two.verdicts().values()) == {"MISSING"}
    assert "name: A's is T4, B's is A30" in two.compare()[1]


def test_a_difference_that_is_no_obstacle_is_told(two: Two) -> None:
    """A newer driver is compared with, and said with the verdict."""
    for side, driver, day in (("a", "550", 1), ("b", "560", 2)):
        entry = on_device(entry_of(day=day), name="T4", product="Tesla T4", driver=driver)
        two.write(side, {TEST: entry}, device="T4")
    assert set(two.verdicts().values()) == {"PASS"}
    assert "driver: A's is 550, B's is 560" in two.compare()[1]


def test_one_device_of_several(two: Two) -> None:
    """``--device`` leaves out all others, on both sides."""
    for side, speeds in (("a", STEADY), ("b", SLOWER)):
        two.write(side, {TEST: on_device(entry_of(speeds), name="T4", product="Tesla T4")}, device="T4")
        two.write(side, {TEST: entry_of(day=1 if side == "a" else 2)})
    assert two.compare()[0] == 1
    status, said = two.compare("--device=cpu")
    assert status == 0
    assert "T4" not in said


def test_tolerances_are_asked_for_by_metric(two: Two) -> None:
    """A wider tolerance lets pass what the default does not, for the metric that it names."""
    two.write("a", {TEST: entry_of()})
    two.write("b", {TEST: entry_of([0.9 * speed for speed in STEADY], day=2)})
    assert two.verdicts()["throughput"] != "PASS"
    verdicts = two.verdicts("--tolerance=throughput=0.5", "--tolerance=p50=0.5")
    assert (verdicts["throughput"], verdicts["latency.p50"]) == ("PASS", "PASS")


def test_default_tolerances_are_told(two: Two) -> None:
    """A baseline keeps no tolerance of its test, so that another verdict than the test's own is no surprise."""
    two.write("a", {TEST: entry_of()})
    two.write("b", {TEST: entry_of(day=2)})
    status, said = two.compare("--metric=throughput", "--metric=p99")
    (line,) = [line for line in said.splitlines() if line.startswith("default tolerances")]
    assert line.startswith("default tolerances of throughput, latency.p99: a baseline keeps none")
    assert "--tolerance=METRIC=FRACTION" in line
    given = ("--metric=throughput", "--metric=p99", "--tolerance=throughput=0.1")
    assert "default tolerances of latency.p99:" in two.compare(*given)[1]
    assert json.loads(two.compare(*given, "--json")[1])["loads"][0]["default_tolerances"] == ["latency.p99"]
    assert "default tolerances" not in two.compare(*given, "--tolerance=p99=0.3")[1]
    assert status == 0


def test_the_help_tells_of_default_tolerances(capsys: pytest.CaptureFixture[str]) -> None:
    """So does whoever asks before."""
    with pytest.raises(SystemExit):
        main(["--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "baselines are compared at default tolerances, for a baseline keeps none" in told


def test_a_claim_among_many_comparisons_must_be_surer(two: Two) -> None:
    """A regression that stands alone is held back among many comparisons, and the reason says so."""
    slower = [0.88 * speed for speed in STEADY]
    many = {f"test_{number}": entry_of() for number in range(12)}
    two.write("a", {TEST: entry_of(), **many})
    two.write("b", {TEST: entry_of(slower, day=2), **{name: entry_of(day=2) for name in many}})
    assert two.compare()[0] == 1
    alone = two.compare("--metric=throughput", "--json")[1]
    by_name = {load["test"]: load["verdicts"][0] for load in json.loads(alone)["loads"]}
    assert by_name[TEST]["verdict"] == "INCONCLUSIVE"
    assert "but not among these 13 comparisons" in by_name[TEST]["reasons"][-1]
    two.write("a", {TEST: entry_of()})
    two.write("b", {TEST: entry_of(slower, day=2)})
    assert two.verdicts("--metric=throughput") == {"throughput": "REGRESSED"}


def test_the_widest_change_comes_first(two: Two) -> None:
    """Whoever reads only the first lines sees what moved most."""
    speeds = {"test_a": 0.99, "test_b": 0.5, "test_c": 0.8}
    two.write("a", {name: entry_of() for name in speeds})
    two.write("b", {name: entry_of([speed * each for each in STEADY], day=2) for name, speed in speeds.items()})
    main(["a", "b", "--json"])
    loads = json.loads(two._capsys.readouterr().out)["loads"]
    assert [load["test"] for load in loads] == ["test_b", "test_c", "test_a"]
    changes = [abs(verdict["change"]) for verdict in loads[0]["verdicts"]]
    assert changes[-1] == min(changes)


def test_json_says_what_the_text_says(two: Two) -> None:
    """Every list and verdict is there, with the exit status' reason."""
    two.write("a", {TEST: entry_of(), "test_gone": entry_of(), "test_same": entry_of()})
    two.write("b", {TEST: entry_of(day=2), "test_new": entry_of(), "test_same": entry_of()})
    status, said = two.compare("--json", "--metric=p99")
    plain = json.loads(said)
    assert (status, plain["schema"], plain["well"]) == (1, 2, False)
    name = {"device": "cpu", "file": FILE}
    assert plain["only_a"] == [{**name, "test": "test_gone"}]
    assert plain["only_b"] == [{**name, "test": "test_new"}]
    assert plain["unchanged"] == [{**name, "test": "test_same", "host": None}]
    ((verdict,),) = [load["verdicts"] for load in plain["loads"]]
    assert list(verdict) == [
        "metric",
        "verdict",
        "value",
        "unit",
        "reference",
        "change",
        "interval",
        "tolerance",
        "detectable",
        "sessions",
        "reasons",
    ]
    low, high = verdict["interval"]
    assert low < verdict["change"] < high


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--metric=p98", "'p98' is no metric; there are throughput, p50"),
        ("--tolerance=p99", "'p99' is not METRIC=FRACTION"),
        ("--tolerance=p99=0", "'p99=0' is not METRIC=FRACTION"),
        ("--tolerance=p99=nan", "'p99=nan' is not METRIC=FRACTION"),
        ("--tolerance=speed=0.1", "'speed' is no metric"),
        ("--tolerance=throughput=1", "throughput cannot fall by 100%"),
    ],
)
def test_a_wrong_argument_is_told(two: Two, argument: str, says: str) -> None:
    """The exit status is 2, and what is wrong is named with what is right."""
    with pytest.raises(SystemExit) as ended:
        main(["a", "b", argument])
    assert ended.value.code == 2
    assert says in two._capsys.readouterr().err


def test_published_numbers_are_no_baselines(two: Two) -> None:
    """A folder of baselines may hold numbers that others printed, which are passed over."""
    for side, day in (("a", 1), ("b", 2)):
        two.write(side, {TEST: entry_of(day=day)})
        (two.folder / side / "cpu" / "published").mkdir()
        (two.folder / side / "cpu" / "published" / "x.json").write_text("{}")
    assert two.compare()[0] == 0


def test_a_file_may_lie_anywhere(two: Two) -> None:
    """Two single files are compared whatever they are called, as somebody who kept a copy would."""
    two.write("a", {TEST: entry_of()}).rename(two.folder / "old.json")
    two.write("b", {TEST: entry_of(SLOWER, day=2)})
    assert main(["old.json", f"b/cpu/{FILE}"]) == 1
    assert "REGRESSED" in two._capsys.readouterr().out


def test_a_terminal_that_knows_colours_gets_them(
    two: Two, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Verdicts are coloured where somebody looks, unless they do not want it, and nothing is spelled out for it."""
    two.write("a", {TEST: entry_of()})
    two.write("b", {TEST: entry_of(day=2)})
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[32mPASS" in two.compare()[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in two.compare()[1]


def test_a_name_that_would_command_the_terminal_is_spelled_out(two: Two) -> None:
    """Escape sequences in a test's id reach no terminal, in whichever list they stand."""
    name = "test_z[\x1b[2J\x07]"
    two.write("a", {name: entry_of(), f"gone{name}": entry_of()})
    two.write("b", {name: entry_of(day=2), f"new{name}": entry_of()})
    _, said = two.compare()
    assert "\x1b" not in said
    assert "\x07" not in said
    assert said.count(r"test_z[\x1b[2J\x07]") >= 2


def test_secrets_are_masked_before_they_are_laid_out(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that folds a test's name does not break a secret in two, of which each half would be shown."""
    secret = "s3cr3t-" + "abcdefghij" * 6
    monkeypatch.setenv("A_TOKEN", secret)
    monkeypatch.setenv("COLUMNS", "60")
    name = f"test_z[{secret}]"
    two.write("a", {name: entry_of(), f"gone{name}": entry_of()})
    two.write("b", {name: entry_of(day=2)})
    _, said = two.compare()
    assert "abcdefghij" not in said
    assert said.count("<A_TOKEN>") >= 2


def test_a_secret_does_not_break_the_json(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that is a word of ours is masked in texts of the two sides, and no field is called otherwise."""
    monkeypatch.setenv("A_TOKEN", "verdicts")
    two.write("a", {"test_verdicts": entry_of()})
    two.write("b", {"test_verdicts": entry_of(day=2)})
    (load,) = json.loads(two.compare("--json")[1])["loads"]
    assert load["test"] == "test_<A_TOKEN>"
    assert load["verdicts"]


def test_a_folder_of_tests_may_be_called_like_the_device(two: Two) -> None:
    """The device's folder is the first of that name below the baselines; what lies deeper is a test's own."""
    for side, day in (("a", 1), ("b", 2)):
        for file in ("test_y.json", "cpu/test_y.json", "x/cpu/test_y.json"):
            two.write(side, {TEST: entry_of(day=day)}, file=file)
    status, said = two.compare("--json", "--metric=throughput")
    assert status == 0
    assert {load["file"] for load in json.loads(said)["loads"]} == {
        "test_y.json",
        "cpu/test_y.json",
        "x/cpu/test_y.json",
    }


@pytest.mark.parametrize(
    ("path", "root", "file"),
    [
        ("baselines/cpu/x/test_y.json", "baselines", "x/test_y.json"),
        ("baselines/cpu/cpu/test_y.json", "baselines", "cpu/test_y.json"),
        ("baselines/cpu/x/test_y.json", "baselines/cpu", "x/test_y.json"),
        ("baselines/cpu/x/test_y.json", "baselines/cpu/x", "x/test_y.json"),
        ("cpu/cpu/x/test_y.json", "cpu", "x/test_y.json"),
        ("/cpu/baselines/cpu/x/test_y.json", "/cpu/baselines/cpu", "x/test_y.json"),
        ("baselines/cpu/x/test_y.json", ".", "x/test_y.json"),
        ("kept/test_y.json", "kept", "test_y.json"),
        ("cpu/cpu", "cpu", "cpu"),
    ],
)
def test_where_an_entry_belongs(path: str, root: str, file: str) -> None:
    """Below the folder that is known the first folder of the device's name counts, above it the last."""
    key = baseline_key(PurePosixPath(path), PurePosixPath(root), "test_z", "cpu")
    assert (key.device, key.file, key.name) == ("cpu", file, "test_z")
