"""Comparing two states of the baselines: the gate's own verdicts, and an exit status that never fails open."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.compare.loads import baseline_key
from pytest_gpuserve.comparison.stored import stored_judgement
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.store.baseline import read, write
from tests.compare.conftest import SAME, SLOWER
from tests.support.baseline_repository import FILE, STEADY, TEST, WORKLOAD, anchored_on, entry_of, on_device

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpuserve.store.schema import Entry
    from tests.compare.conftest import Said

SKIPPING = ("--on-missing=skip", "--on-inconclusive=skip")
THROUGHPUT = "--metric=throughput"


class Two:
    """Two folders of baselines, in which the command is run."""

    def __init__(self, folder: Path, said: Said) -> None:
        self.folder = folder
        self._said = said

    def write(self, side: str, entries: Mapping[str, Entry], file: str = FILE, device: str = "cpu") -> Path:
        """Write a baseline file of a side."""
        path = self.folder / side / device / file
        write(path, entries)
        return path

    def both(self, a: Entry, b: Entry) -> None:
        """Write the one load's entry on both sides."""
        self.write("a", {TEST: a})
        self.write("b", {TEST: b})

    def compare(self, *arguments: str) -> tuple[int, str]:
        """The exit status, and what was said."""
        return self._said("a", "b", *arguments)

    def plain(self, *arguments: str) -> dict[str, Any]:
        """The comparison as JSON."""
        found: dict[str, Any] = json.loads(self.compare("--json", *arguments)[1])
        return found

    def verdicts(self, *arguments: str) -> dict[str, str]:
        """The verdict of each metric of the one load."""
        (load,) = self.plain(*arguments)["loads"]
        return {verdict["metric"]: verdict["verdict"] for verdict in load["verdicts"]}


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> Two:
    """An empty project, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    return Two(tmp_path, said)


# -- verdicts


@pytest.mark.parametrize(
    ("old", "new", "status", "last"),
    [
        pytest.param(STEADY, SLOWER, 1, "not well: 5 REGRESSED, 1 PASS", id="slower"),
        pytest.param(STEADY, STEADY[::-1], 0, "nothing is worse: 6 PASS", id="other sessions of the same speed"),
        pytest.param(SLOWER, STEADY, 0, "nothing is worse: 5 IMPROVED, 1 PASS", id="faster"),
    ],
)
def test_what_is_said_of_another_build(
    two: Two, old: tuple[float, ...], new: tuple[float, ...], status: int, last: str
) -> None:
    """The exit status is 1 where anything is worse beyond doubt, and the last line counts the verdicts."""
    two.both(entry_of(old), entry_of(new, day=2))
    found, said = two.compare()
    assert (found, said.splitlines()[-1]) == (status, last)
    if status:
        row = next(line for line in said.splitlines() if "throughput" in line)
        assert all(word in row for word in ("600/s", "1000/s", "-40.0 %", "REGRESSED"))


def test_too_few_samples_decide_nothing(two: Two) -> None:
    """One session beside one, or a quantile of too few requests, is INCONCLUSIVE: no 0 unless it is allowed."""
    two.both(entry_of([1.0]), entry_of([0.97], day=2))
    assert two.compare()[0] == 1
    assert two.verdicts(THROUGHPUT) == {"throughput": "INCONCLUSIVE"}
    assert two.compare("--on-inconclusive=skip")[0] == 0
    two.both(entry_of(requests=100), entry_of(day=2, requests=100))
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
    """Unchanged baselines are well, however few sessions they have; one that grew is judged by its new ones alone."""
    two.both(entry_of([1.0]), entry_of([1.0]))
    status, said = two.compare()
    assert (status, SAME in said) == (0, True)
    grown = entry_of()
    grown.sessions.extend(entry_of(SLOWER, day=2).sessions)
    two.both(entry_of(), grown)
    (load,) = two.plain(THROUGHPUT)["loads"]
    (verdict,) = load["verdicts"]
    assert (verdict["verdict"], verdict["sessions"]) == ("REGRESSED", len(SLOWER))
    assert verdict["change"] == pytest.approx(-0.4, rel=1e-4)


def test_a_claim_among_many_comparisons_must_be_surer(two: Two) -> None:
    """A regression that stands alone is held back among many comparisons, and the reason says so."""
    slower = [0.88 * speed for speed in STEADY]
    many = {f"test_{number}": entry_of() for number in range(12)}
    two.write("a", {TEST: entry_of(), **many})
    two.write("b", {TEST: entry_of(slower, day=2), **{name: entry_of(day=2) for name in many}})
    assert two.compare()[0] == 1
    by_name = {load["test"]: load["verdicts"][0] for load in two.plain(THROUGHPUT)["loads"]}
    assert by_name[TEST]["verdict"] == "INCONCLUSIVE"
    assert "but not among these 13 comparisons" in by_name[TEST]["reasons"][-1]
    two.both(entry_of(), entry_of(slower, day=2))
    assert two.verdicts(THROUGHPUT) == {"throughput": "REGRESSED"}


# -- what is not in both, and what is not comparable


def test_what_is_gone_is_not_well_and_what_is_new_is(two: Two) -> None:
    """Both are named; the exit status is 1 for what is gone unless that is allowed, and 0 for what is new."""
    two.write("a", {TEST: entry_of(), "test_gone": entry_of()})
    two.write("b", {TEST: entry_of(day=2), "test_new": entry_of()})
    status, said = two.compare()
    assert status == 1
    assert f"only in A: cpu {FILE}::test_gone" in said
    assert f"only in B: cpu {FILE}::test_new" in said
    assert two.compare("--on-missing=skip")[0] == 0
    two.write("a", {TEST: entry_of()})
    assert two.compare()[0] == 0


def test_nothing_compared_is_not_well(two: Two) -> None:
    """With no load in common, or none that was measured alike, nothing is known, whatever is allowed to be missing."""
    two.write("a", {"test_one": entry_of()})
    two.write("b", {"test_other": entry_of()})
    status, said = two.compare(*SKIPPING)
    last = said.splitlines()[-1]
    assert (status, last.startswith("nothing was compared: A and B have no load in common")) == (1, True)
    two.both(entry_of(), entry_of(SLOWER, day=2, workload={**WORKLOAD, "concurrency": "80"}))
    status, said = two.compare(*SKIPPING)
    assert (status, said.splitlines()[-1]) == (1, "nothing could be compared: 6 MISSING")
    # A load beside it that is unchanged, or that was judged, is something.
    for day in (1, 2):
        two.write("a", {"test_w": entry_of()}, file="x/test_w.json")
        two.write("b", {"test_w": entry_of(day=day)}, file="x/test_w.json")
        assert two.compare(*SKIPPING)[0] == 0
        assert two.compare("--on-inconclusive=skip")[0] == 1


@pytest.mark.parametrize(
    ("new", "says"),
    [
        pytest.param(
            {"workload": {**WORKLOAD, "concurrency": "80"}},
            "another workload: concurrency: A has '50', B has '80'",
            id="workload",
        ),
        pytest.param({"host": "host-b"}, "A was measured on host host-a, B on host-b", id="host"),
    ],
)
def test_what_was_measured_otherwise_is_not_compared(two: Two, new: dict[str, Any], says: str) -> None:
    """What differs is named, and no change is computed from the two numbers."""
    two.both(entry_of(), entry_of(day=2, **new))
    assert set(two.verdicts().values()) == {"MISSING"}
    status, said = two.compare()
    assert (status, says in said, " +0.0 %" in said) == (1, True, False)


def test_devices_are_compared_by_what_they_are(two: Two) -> None:
    """Another device is MISSING with both names, another driver is compared and told, `--device` leaves out others."""
    t4 = {"name": "T4", "product": "Tesla T4"}
    two.write("a", {TEST: on_device(entry_of(), **t4, driver="550")}, device="T4")
    two.write("b", {TEST: on_device(entry_of(day=2), name="A30", product="NVIDIA A30")}, device="A30")
    assert set(two.verdicts().values()) == {"MISSING"}
    assert "name: A's is T4, B's is A30" in two.compare()[1]
    (two.folder / "b" / "A30" / FILE).unlink()
    two.write("b", {TEST: on_device(entry_of(day=2), **t4, driver="560")}, device="T4")
    assert set(two.verdicts().values()) == {"PASS"}
    assert "driver: A's is 550, B's is 560" in two.compare()[1]
    two.write("b", {TEST: on_device(entry_of(SLOWER, day=2), **t4)}, device="T4")
    two.both(entry_of(), entry_of(day=2))
    assert two.compare()[0] == 1
    status, said = two.compare("--device=cpu")
    assert (status, "T4" in said) == (0, False)


def test_each_host_is_judged_by_itself(two: Two) -> None:
    """Of an entry of two hosts each is compared and named; one that recorded nothing new is named as unchanged."""
    old, one_slower, one_new = entry_of(), entry_of(day=2), entry_of(day=2)
    old.sessions.extend(entry_of(host="host-b").sessions)
    one_slower.sessions.extend(entry_of(SLOWER, day=2, host="host-b").sessions)
    one_new.sessions.extend(entry_of(host="host-b").sessions)
    two.both(old, one_slower)
    loads = two.plain(THROUGHPUT)["loads"]
    assert {load["host"]: load["verdicts"][0]["verdict"] for load in loads} == {"host-a": "PASS", "host-b": "REGRESSED"}
    two.both(old, one_new)
    plain = two.plain()
    assert [load["host"] for load in plain["loads"]] == ["host-a"]
    assert plain["unchanged"] == [{"device": "cpu", "file": FILE, "test": TEST, "host": "host-b"}]
    status, said = two.compare()
    assert (status, f"the same sessions in both: cpu {FILE}::{TEST} on host-b" in said) == (0, True)


def test_a_metric_on_request_is_compared_where_it_is_anchored(two: Two) -> None:
    """What a test asks for is compared without being named, whichever side tells so; what none asks for is not."""
    slow = entry_of(day=2, cold_start_seconds=6.0)
    for a, b in (
        (anchored_on(entry_of(), "cold_start", "throughput"), slow),
        (entry_of(), anchored_on(slow, "cold_start")),
    ):
        two.both(a, b)
        verdicts = two.verdicts()
        assert verdicts.pop("cold_start") == "REGRESSED"
        assert set(verdicts.values()) == {"PASS"}
        assert two.compare()[0] == 1
    two.both(entry_of(), slow)
    assert "cold_start" not in two.verdicts()


# -- options


def test_tolerances_are_asked_for_by_metric(two: Two) -> None:
    """A wider tolerance lets pass what the default does not; where none is given, the default is told, in help too."""
    two.both(entry_of(), entry_of([0.9 * speed for speed in STEADY], day=2))
    assert two.verdicts()["throughput"] != "PASS"
    verdicts = two.verdicts("--tolerance=throughput=0.5", "--tolerance=p50=0.5")
    assert (verdicts["throughput"], verdicts["latency.p50"]) == ("PASS", "PASS")
    asked = (THROUGHPUT, "--metric=p99")
    (line,) = [line for line in two.compare(*asked)[1].splitlines() if line.startswith("default tol")]
    assert line.startswith("default tolerances of throughput, latency.p99: a baseline keeps none")
    assert "--tolerance=METRIC=FRACTION" in line
    given = (*asked, "--tolerance=throughput=0.1")
    assert "default tolerances of latency.p99:" in two.compare(*given)[1]
    assert two.plain(*given)["loads"][0]["default_tolerances"] == ["latency.p99"]
    assert "default tolerances" not in two.compare(*given, "--tolerance=p99=0.3")[1]
    status, text = two.compare("--help")
    told = " ".join(text.split())
    assert status == 0
    assert "baselines are compared at default tolerances, for a baseline keeps none" in told
    assert "Exit status: 0 where nothing is worse" in told


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--metric=p98", "'p98' is no metric; there are throughput, p50"),
        ("--tolerance=p99", "'p99' is not METRIC=FRACTION"),
        ("--tolerance=p99=nan", "'p99=nan' is not METRIC=FRACTION"),
        ("--tolerance=speed=0.1", "'speed' is no metric"),
        ("--tolerance=throughput=1", "throughput cannot fall by 100%"),
    ],
)
def test_a_wrong_argument_is_told(two: Two, argument: str, says: str) -> None:
    """The exit status is 2, and what is wrong is named with what is right."""
    status, text = two.compare(argument)
    assert (status, says in text) == (2, True)


# -- what is printed


def test_json_says_what_the_text_says(two: Two) -> None:
    """Every list and verdict is there, with the exit status' reason, and the widest change comes first."""
    speeds = {"test_a": 0.99, "test_b": 0.5, "test_c": 0.8}
    two.write("a", {**dict.fromkeys(speeds, entry_of()), "test_gone": entry_of(), "test_same": entry_of()})
    changed = {name: entry_of([speed * each for each in STEADY], day=2) for name, speed in speeds.items()}
    two.write("b", {**changed, "test_new": entry_of(), "test_same": entry_of()})
    plain = two.plain()
    assert (plain["schema"], plain["well"]) == (2, False)
    name = {"device": "cpu", "file": FILE}
    assert plain["only_a"] == [{**name, "test": "test_gone"}]
    assert plain["only_b"] == [{**name, "test": "test_new"}]
    assert plain["unchanged"] == [{**name, "test": "test_same", "host": None}]
    assert [load["test"] for load in plain["loads"]] == ["test_b", "test_c", "test_a"]
    changes = [abs(verdict["change"]) for verdict in plain["loads"][0]["verdicts"]]
    assert changes[-1] == min(changes)
    verdict = plain["loads"][0]["verdicts"][0]
    assert " ".join(verdict) == (
        "metric verdict value unit reference change interval tolerance detectable sessions reasons"
    )
    low, high = verdict["interval"]
    assert low < verdict["change"] < high


def test_a_terminal_that_knows_colours_gets_them(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts are coloured where somebody looks, unless they do not want it."""
    two.both(entry_of(), entry_of(day=2))
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
    assert not {"\x1b", "\x07"} & set(said)
    assert said.count(r"test_z[\x1b[2J\x07]") >= 2


def test_secrets_are_masked(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that folds a name breaks no secret in two, and a secret that is a word of ours renames no JSON field."""
    secret = "s3cr3t-" + "abcdefghij" * 6
    monkeypatch.setenv("A_TOKEN", secret)
    monkeypatch.setenv("COLUMNS", "60")
    name = f"test_z[{secret}]"
    two.write("a", {name: entry_of(), f"gone{name}": entry_of()})
    two.write("b", {name: entry_of(day=2)})
    _, said = two.compare()
    assert "abcdefghij" not in said
    assert said.count("<A_TOKEN>") >= 2
    monkeypatch.setenv("A_TOKEN", "verdicts")
    two.write("a", {"test_verdicts": entry_of()})
    two.write("b", {"test_verdicts": entry_of(day=2)})
    (load,) = two.plain()["loads"]
    assert load["test"] == "test_<A_TOKEN>"
    assert load["verdicts"]


# -- where files lie


def test_files_may_lie_anywhere(two: Two, said: Said) -> None:
    """A copy may have any name, a folder of tests the device's; published numbers are passed over."""
    files = ("test_y.json", "cpu/test_y.json", "x/cpu/test_y.json")
    for side, day in (("a", 1), ("b", 2)):
        for file in files:
            two.write(side, {TEST: entry_of(day=day)}, file=file)
        (two.folder / side / "cpu" / "published").mkdir()
        (two.folder / side / "cpu" / "published" / "x.json").write_text("{}")
    assert two.compare()[0] == 0
    assert {load["file"] for load in two.plain(THROUGHPUT)["loads"]} == set(files)
    two.write("a", {TEST: entry_of()}).rename(two.folder / "old.json")
    two.write("b", {TEST: entry_of(SLOWER, day=2)})
    status, text = said("old.json", f"b/cpu/{FILE}")
    assert (status, "REGRESSED" in text) == (1, True)


@pytest.mark.parametrize(
    ("path", "root", "file"),
    [
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
