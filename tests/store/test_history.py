"""What is remembered between runs: read back as it was, for its own pair only, and for as long as was promised."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuserve.measure.rounds import ABBA, ARMS, BAAB, ArmResult, Block, Round
from pytest_gpuserve.measure.window import Client
from pytest_gpuserve.store.checksummed import HistoryUnusable
from pytest_gpuserve.store.history import KEPT, PAST_DAYS, ROUNDS_DAYS, History, PastComparisons
from pytest_gpuserve.store.sequence import KeptMetric, KeptSequence
from pytest_gpuserve.verdict.sequential import LOOKS
from pytest_gpuserve.verdict.verdict import Verdict
from tests.store.history_builders import (
    COUNT,
    HISTOGRAMS,
    SECONDS,
    SUBJECT,
    TODAY,
    days_later,
    ended,
    forked,
    pair,
    small_round,
    small_sequence,
    windows,
)
from tests.support.builders import window
from tests.support.reasons import because

if TYPE_CHECKING:
    from pathlib import Path

# The folder is the same for every example.
EVERY = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
MOMENTS = st.datetimes().map(lambda moment: f"{moment.replace(microsecond=0).isoformat()}+00:00")
WORDS = st.text(st.characters(codec="utf-8"), max_size=8)
ERRORS = st.dictionaries(WORDS, COUNT, max_size=2)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """A block of any order."""
    order = draw(st.sampled_from([ABBA, BAAB, ABBA[:2], BAAB[:2]]))
    return Block(order, tuple(draw(windows(ERRORS)) for _ in order))


CLIENTS = st.builds(
    Client,
    lag=HISTOGRAMS,
    service=HISTOGRAMS,
    resent=COUNT,
    ceiling=SECONDS | st.none(),
)
SIDES = st.builds(
    ArmResult,
    cold_start_seconds=st.lists(st.floats(0, 1e6), max_size=3).map(tuple),
    client=CLIENTS,
    batch_sizes=st.dictionaries(WORDS, COUNT, max_size=3),
    answers=COUNT,
    answers_checked=COUNT,
)
ROUNDS = st.builds(
    Round,
    blocks=st.lists(blocks(), max_size=2).map(tuple),
    first=st.sampled_from(ARMS),
    sides=st.dictionaries(st.sampled_from(ARMS), SIDES),
    at=MOMENTS,
    by_turns=st.booleans(),
    rejected=COUNT,
    foreign_cores=st.floats(0, 1e3),
)
DIFFERENCES = st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=6).map(tuple), max_size=8).map(tuple)


@st.composite
def metrics(draw: st.DrawFn) -> KeptMetric:
    """A metric after any looks."""
    taken = sorted(draw(st.sets(st.integers(0, len(LOOKS) - 1))))
    looks = tuple(taken)
    decision = draw(st.sampled_from(Verdict) | st.none())
    return KeptMetric(draw(st.floats(1e-4, 10)), looks, decision, draw(DIFFERENCES))


SEQUENCES = st.builds(
    KeptSequence,
    rounds=st.lists(ROUNDS, max_size=2).map(tuple),
    metrics=st.dictionaries(WORDS, metrics(), max_size=2),
    began=MOMENTS,
)


@pytest.fixture
def history(tmp_path: Path) -> History:
    """A history on a day in 2025."""
    return on_day(tmp_path, 0)


def on_day(tmp_path: Path, days: float) -> History:
    """The same history so many days later."""
    return History(tmp_path / "gpuserve", now=lambda: days_later(days))


def names(tmp_path: Path) -> set[str]:
    """Whatever lies in the folder."""
    return {path.name for path in (tmp_path / "gpuserve").iterdir()}


@EVERY
@given(sequence=SEQUENCES)
def test_any_sequence_is_read_back_as_it_was(history: History, sequence: KeptSequence) -> None:
    """Rounds with all windows, histograms and failed requests, looks, tolerances and decisions survive the file."""
    history.save(pair(), sequence)
    assert history.load(pair()) == replace(sequence, added=TODAY)


def test_a_later_save_replaces_an_earlier_one(history: History) -> None:
    """The last save is what a re-run goes on from; a round that says 0 cores for 0.0 is like any other."""
    history.save(pair(), small_sequence(rounds=2))
    sequence = replace(small_sequence(), rounds=(replace(small_round(), foreign_cores=0),))
    history.save(pair(), sequence)
    assert history.load(pair()) == replace(sequence, added=TODAY)
    assert len(list(history.folder.iterdir())) == 2


def test_what_was_never_compared_is_not_remembered(history: History) -> None:
    """Without a folder, or without a file in it, a sequence begins, with the default prior; that is no error."""
    assert history.load(pair()) is None
    assert history.past_rounds(SUBJECT) == PastComparisons()
    history.save(pair("other"), small_sequence())
    assert history.load(pair()) is None


OTHER_SUBJECTS = [
    replace(SUBJECT, nodeid="other"),
    replace(SUBJECT, label="other"),
    replace(SUBJECT, host="other"),
    replace(SUBJECT, device="other"),
    replace(SUBJECT, workload={**SUBJECT.workload, "concurrency": "51"}),
    replace(SUBJECT, workload={"server": "mosec"}),
]
OTHERS = [
    *(replace(pair(), subject=subject) for subject in OTHER_SUBJECTS),
    replace(pair(), base="other"),
    replace(pair(), candidate="other"),
    replace(pair(), software={"mosec": "0.9.6"}),
    replace(pair(), software={}),
    replace(pair(), base=pair().candidate, candidate=pair().base),
]


def test_another_pair_begins_anew(history: History) -> None:
    """A pair that differs in anything has a name of its own; the order in which a mapping was filled is no matter."""
    history.save(pair(), small_sequence())
    assert [history.load(other) for other in OTHERS] == [None] * len(OTHERS)
    assert len({other.digest() for other in (*OTHERS, pair())}) == len(OTHERS) + 1
    turned = replace(SUBJECT, workload=dict(reversed(SUBJECT.workload.items())))
    assert replace(pair(), subject=turned).digest() == pair().digest()


def test_a_sequence_goes_on_for_thirty_days_from_its_last_round(tmp_path: Path) -> None:
    """What counts is when it was last added to; a file of tomorrow is still evidence."""
    on_day(tmp_path, 0).save(pair(), small_sequence())
    on_day(tmp_path, 20).save(pair(), small_sequence())
    on_day(tmp_path, -400).save(pair("other"), small_sequence())
    assert on_day(tmp_path, -400).load(pair()) is not None
    assert on_day(tmp_path, 20 + ROUNDS_DAYS).load(pair()) is not None
    assert on_day(tmp_path, 21 + ROUNDS_DAYS).load(pair()) is None


def test_old_rounds_are_removed_and_their_differences_stay(tmp_path: Path) -> None:
    """The next save removes whole rounds of any test after thirty days, and differences after a year."""
    elsewhere = replace(SUBJECT, nodeid="a test that is gone")
    on_day(tmp_path, 0).save(pair(subject=elsewhere), small_sequence())
    before = names(tmp_path)
    on_day(tmp_path, ROUNDS_DAYS + 1).save(pair(), small_sequence())
    assert before - names(tmp_path) == {name for name in before if name.endswith(".rounds.json")}
    assert len(on_day(tmp_path, ROUNDS_DAYS + 1).past_rounds(elsewhere).comparisons) == 1
    assert on_day(tmp_path, PAST_DAYS + 1).past_rounds(elsewhere).comparisons == ()
    on_day(tmp_path, PAST_DAYS + 1).save(pair(), small_sequence())
    assert before & names(tmp_path) == set()


def test_what_a_killed_run_left_half_written_is_removed_in_time(tmp_path: Path) -> None:
    """Unfinished files of ours go like finished ones; a file that is not ours stays."""
    history = on_day(tmp_path, 0)
    history.save(pair(), small_sequence())
    mine = {path.name for path in history.folder.iterdir()}
    for name in [f".{next(iter(mine))}.x_y1", "notes.txt"]:
        (history.folder / name).write_text("half")
        os.utime(history.folder / name, (0, 0))
    history.save(pair(), small_sequence())
    assert names(tmp_path) == {*mine, "notes.txt"}


def test_only_so_many_comparisons_of_a_test_are_kept(tmp_path: Path) -> None:
    """The oldest of a test go; those of another test stay, what another run is writing just now, and what was saved."""
    elsewhere = replace(SUBJECT, label="another load")
    on_day(tmp_path, 0).save(pair(subject=elsewhere), small_sequence())
    unfinished = tmp_path / "gpuserve" / f".{SUBJECT.digest()}-{pair().digest()}.rounds.json.x_y1"
    unfinished.write_text("half")
    os.utime(unfinished, (datetime.fromisoformat(TODAY).timestamp(),) * 2)
    for number in range(KEPT + 2):
        on_day(tmp_path, number / 24).save(pair(str(number)), small_sequence())
    history = on_day(tmp_path, 2)
    assert [number for number in range(KEPT + 2) if history.load(pair(str(number)))] == list(range(2, KEPT + 2))
    assert len(history.past_rounds(SUBJECT).comparisons) == KEPT
    assert history.load(pair(subject=elsewhere)) is not None
    assert len(names(tmp_path)) == 2 * KEPT + 2 + 1
    # Not even where a clock that was set back makes it the oldest.
    on_day(tmp_path, -1).save(pair(), small_sequence())
    assert history.load(pair()) is not None


def test_past_rounds_are_those_of_the_subject_newest_first(tmp_path: Path) -> None:
    """Other candidates of the same test, load, device, host and workload; never the pair itself, nor another test."""
    on_day(tmp_path, 0).save(pair("older"), small_sequence((0.1, 0.2), (0.3,)))
    on_day(tmp_path, 1).save(pair("newer"), small_sequence((0.4,)))
    for key in (pair(), *(pair(subject=subject) for subject in OTHER_SUBJECTS)):
        on_day(tmp_path, 2).save(key, small_sequence((9.0,)))
    past = on_day(tmp_path, 3).past_rounds(SUBJECT, excluding=pair())
    assert [each.at for each in past.comparisons] == [days_later(1), TODAY]
    assert [each.differences["throughput"] for each in past.comparisons] == [((0.4,),), ((0.1, 0.2), (0.3,))]
    assert past.comparisons[0].differences["latency.p99"] == ()
    assert past.notes == ()
    assert len(on_day(tmp_path, 3).past_rounds(SUBJECT).comparisons) == 3


@pytest.mark.parametrize(("looks", "differences"), [((1, 0), ()), ((1, 1), ()), ((), ((0.1,), ()))])
def test_a_metric_is_consistent(looks: tuple[int, ...], differences: tuple[tuple[float, ...], ...]) -> None:
    """A look is taken once and in order, and a round has differences."""
    with pytest.raises(ValueError, match=r"looks are taken|no round"):
        KeptMetric(0.05, looks, differences=differences)


def of_round(**changes: object) -> KeptSequence:
    """A sequence of one round with these changes."""
    return replace(small_sequence(), rounds=(replace(small_round(), **changes),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(of_round(foreign_cores=float("nan")), id="NaN"),
        pytest.param(of_round(at="today"), id="moment"),
        pytest.param(of_round(problems=because("it died")), id="problems"),
        pytest.param(replace(small_sequence(), metrics={"\ud800": KeptMetric(0.05)}), id="surrogate"),
        pytest.param(of_round(rejected=2**70), id="count"),
        pytest.param(of_round(sides={"base": ArmResult((), Client(ceiling=float("nan")))}), id="NaN for none"),
        pytest.param(of_round(blocks=(Block(ABBA, (replace(window(), requests=3),) * 4),)), id="histogram"),
        pytest.param(replace(small_sequence(), began="2025"), id="began"),
        pytest.param(replace(small_sequence(), metrics={"throughput": KeptMetric(0.0)}), id="tolerance"),
        pytest.param(small_sequence((float("inf"),)), id="infinite"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(history: History, odd: KeptSequence) -> None:
    """A mistake of ours is told before it has replaced good files."""
    history.save(pair(), small_sequence())
    before = {path: path.read_bytes() for path in history.folder.iterdir()}
    with pytest.raises(HistoryUnusable, match="not remembered"):
        history.save(pair(), odd)
    assert {path: path.read_bytes() for path in history.folder.iterdir()} == before


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    """The run goes on without a memory, having said so in one line; when it can be written it is."""
    (tmp_path / "gpuserve").write_text("a file where a folder should be")
    history = on_day(tmp_path, 0)
    with pytest.raises(HistoryUnusable) as caught:
        history.save(pair(), small_sequence())
    assert str(tmp_path / "gpuserve") in caught.value.line
    assert "\n" not in caught.value.line
    history.save(pair(), small_sequence())
    (tmp_path / "gpuserve").unlink()
    history.save(pair(), small_sequence())
    assert history.load(pair()) is not None


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace", "os.utime"])
def test_a_full_disk_leaves_whole_files(history: History, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Whichever step fails, what is read afterwards is the old sequence or the new one."""
    history.save(pair(), small_sequence())

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(step, fail)
        with pytest.raises(HistoryUnusable, match="cannot be written"):
            history.save(pair(), small_sequence(rounds=2))
    found = history.load(pair())
    assert found is not None
    assert len(found.rounds) in {1, 2}
    assert len(names(history.folder.parent)) == 2


def test_two_runs_at_once_never_mix_their_files(tmp_path: Path) -> None:
    """While two processes save one pair, whatever is read is wholly of one of them."""
    history = History(tmp_path / "gpuserve")
    seen = set()
    left = {forked(partial(saves_again_and_again, history.folder, rounds)) for rounds in (1, 5)}
    at_work = True
    try:
        while at_work:
            # Asked before reading, so that the last reading is of files that are done.
            done = {pid for pid in left if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)}
            at_work = done != left
            found = history.load(pair())
            if found is not None:
                seen.add((len(found.rounds), found.metrics["throughput"].differences))
            assert history.past_rounds(SUBJECT).notes == ()
    finally:
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        statuses = [ended(pid) for pid in left]
    assert statuses == [0, 0]
    assert seen
    assert seen <= {(1, ((1.0,),)), (5, ((5.0,),))}
    assert len(names(tmp_path)) == 2


def saves_again_and_again(folder: Path, rounds: int) -> None:
    """What a run does that remembers so many rounds."""
    history = History(folder)
    for _ in range(40):
        history.save(pair(), small_sequence((float(rounds),), rounds=rounds))
