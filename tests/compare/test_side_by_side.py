"""A comparison side by side, look by look: what is decided stays, and a re-run goes on instead of trying its luck."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import count, repeat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_gpuserve.compare.side_by_side import NOT_LOOKED_AT, SideBySide, judge_one_build
from pytest_gpuserve.measure.rounds import ARMS, Round
from pytest_gpuserve.store.kept import KeptFolder, KeptMetric
from pytest_gpuserve.verdict import verdict as verdict_module
from pytest_gpuserve.verdict.evidence import LOOKS, Prior
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.reason import ReasonKind
from pytest_gpuserve.verdict.verdict import Judgement, ReferenceKind, Verdict
from tests.fakes.scripted_pairing import Build, KeptInMemory, ScriptedPairing, a_comparison
from tests.support.builders import because, judgement, round_of, said, streamed, with_starts, with_windows

THROUGHPUT, P50, P99 = METRICS["throughput"], METRICS["latency.p50"], METRICS["latency.p99"]
COLD_START = METRICS["cold_start"]

TOLERANCE = 0.05
EDGE = math.log1p(THROUGHPUT.growth(TOLERANCE) / 4)
"""The largest negligible change."""

NARROW = Prior(0.005**2, 20)
"""A machine that is known so well that a first round can PASS."""

SHAKY = Build(start_sd=0.02, window_sd=0.02)
SHAKY_PRIOR = Prior(2 * SHAKY.start_sd**2, 20)
"""A machine on which looks matter, and a belief that is right about it."""

MIDDLE = Build(change=0.03, start_sd=0.01, window_sd=0.02)
WIDE = Prior(0.05**2, 20)
"""Between nothing to talk about and too much, where starts are believed to be so far apart that nothing is decided."""


@pytest.fixture
def computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Student's distribution is looked up where it was computed before: to count re-runs is to ask the same again."""
    for name in ("t_quantile", "t_upper_tail"):
        monkeypatch.setattr(verdict_module, name, cache(getattr(verdict_module, name)))


@pytest.fixture
def history(tmp_path: Path) -> KeptFolder:
    """Remembered rounds on disk."""
    return KeptFolder(tmp_path, pytest.fail)


def undecided(history: KeptFolder | None = None) -> SideBySide:
    """A comparison that no look decides."""
    return a_comparison(ScriptedPairing(MIDDLE), history=history, prior=WIDE)


def look(paired: SideBySide, times: int = 1) -> Judgement:
    """Look at throughput so many times; what the last look comes to."""
    for _ in range(times):
        paired.more()
        judgement = paired.judge(THROUGHPUT, TOLERANCE)
    return judgement


def place(paired: SideBySide) -> tuple[int, int]:
    """Rounds so far, and blocks of the last."""
    return len(paired.rounds), paired.rounds[-1].blocks


def run_on(paired: SideBySide, tolerance: float = TOLERANCE, *, looks: int = len(LOOKS)) -> Judgement:
    """Result of one run of a test: looks until throughput is decided, up to a limit."""
    judgement = paired.judge(THROUGHPUT, tolerance)
    while judgement.verdict is Verdict.INCONCLUSIVE and not paired.exhausted and looks:
        looks -= 1
        paired.more()
        judgement = paired.judge(THROUGHPUT, tolerance)
    return judgement


def says(judgement: Judgement, words: str) -> bool:
    """Whether a reason has these words."""
    return any(words in reason for reason in said(judgement.reasons))


# -- looks


def test_looks_come_in_the_planned_order() -> None:
    """Looks come after half a round, then whole rounds, up to eight; one at a time, after each block."""
    pairing = ScriptedPairing(MIDDLE)
    paired, alone = a_comparison(pairing), a_comparison(ScriptedPairing(MIDDLE, one_at_a_time=True))
    judgement = paired.judge(THROUGHPUT, TOLERANCE)
    assert (judgement.verdict, judgement.value, judgement.rounds) == (Verdict.INCONCLUSIVE, None, 0)
    for comparison, looks in ((paired, list(LOOKS)), (alone, [(number, 1) for number in range(1, 9)])):
        seen = []
        while not comparison.exhausted:
            comparison.more()
            seen.append(place(comparison))
        assert seen == looks
    assert pairing.measured == len(LOOKS)
    assert alone.judge(THROUGHPUT, TOLERANCE).windows == 4 * 8


@pytest.mark.parametrize(
    ("start_in_blocks", "window_sd", "seen"),
    [
        (1.5, 0.004, [(1, 3), (2, 6), (3, 6)]),
        (100.0, 0.004, [(1, 3), (1, 6), (2, 6)]),
        (1.5, 0.1, [(1, 3), (1, 6), (2, 6)]),
    ],
    ids=["as a rule", "dear starts", "blocks that scatter"],
)
def test_the_first_round_ends_early_where_another_start_tells_more(
    start_in_blocks: float, window_sd: float, seen: list[tuple[int, int]]
) -> None:
    """Three blocks are enough of starts that are cheap or differ more than blocks do."""
    pairing = ScriptedPairing(Build(0.03, start_sd=0.01, window_sd=window_sd), start_in_blocks=start_in_blocks)
    paired = a_comparison(pairing)
    places: list[tuple[int, int]] = []
    for _ in seen:
        number, before = paired.next_round, len(paired.rounds)
        look(paired)
        places.append(place(paired))
        assert (number, number > before) == (len(paired.rounds), len(paired.rounds) > before)
    assert places == seen
    assert pairing.blocks_of_open_round == 0


def test_a_p99_does_not_hold_a_round_open_beside_a_metric_that_needs_another_start() -> None:
    """The p99 takes the whole round of that start for its first look."""
    paired = a_comparison(ScriptedPairing(Build(0.03, start_sd=0.01, window_sd=0.004), start_in_blocks=1.5))
    for _ in range(2):
        paired.more()
        judged = [paired.judge(metric, TOLERANCE) for metric in (P99, THROUGHPUT)]
    assert place(paired) == (2, 6)
    assert [judgement.windows for judgement in judged] == [4 * 9] * 2


def test_a_first_round_that_a_metric_wants_whole_is_whole() -> None:
    """A p99 needs it, because it takes no part in the first look, and so does a possible drift."""
    dear = Build(0.03, start_sd=0.01, window_sd=0.004)
    places = []
    for metric, build in ((P99, dear), (P50, replace(dear, requests=10)), (P50, replace(dear, drift=0.012))):
        paired = a_comparison(ScriptedPairing(build, start_in_blocks=0.1))
        for _ in range(2):
            paired.more()
            paired.judge(metric, TOLERANCE)
        places.append(place(paired))
    assert places == [(1, 6)] * 3


# -- what is decided stays


@pytest.mark.parametrize("change", [0.3, -0.3, 0.0])
def test_a_decision_stays_whatever_comes_after(change: float) -> None:
    """A metric that was decided is not judged again by later rounds, not even if these say the contrary."""
    pairing = ScriptedPairing(Build(change))
    paired = a_comparison(pairing)
    decided = run_on(paired)
    assert decided.verdict is not Verdict.INCONCLUSIVE
    if pairing.blocks_of_open_round:
        paired.more()
    pairing.build = Build(0.5 - change)
    while not paired.exhausted:
        again = look(paired)
        assert (again.verdict, again.change, again.rounds) == (decided.verdict, decided.change, decided.rounds)


def test_trouble_in_a_round_is_invalid_for_every_metric() -> None:
    """A round with a problem proves nothing, even about metrics that were decided before."""
    paired = a_comparison(ScriptedPairing(problems={1: ("wrong answers",)}), prior=NARROW)
    assert look(paired, 2).verdict is Verdict.PASS
    paired.more()
    for metric in METRICS.values():
        judgement = paired.judge(metric, TOLERANCE)
        assert (judgement.verdict, said(judgement.reasons)) == (Verdict.INVALID, ("wrong answers",))
        assert paired.judge_limit(metric, 1.0).verdict is Verdict.INVALID


def test_a_first_round_that_was_cut_short_does_not_block_a_quantile() -> None:
    """Three blocks without enough requests for a p99 are left out of it: with them no later round was ever judged."""
    paired = a_comparison(ScriptedPairing(Build(requests=250)))
    paired.more()
    paired.stop_load()
    paired.more()
    assert place(paired) == (2, 6)
    judgement = paired.judge(P99, 0.2)
    assert (judgement.verdict, judgement.rounds) == (Verdict.PASS, 1)
    assert paired.judge(P50, TOLERANCE).rounds == 2


# -- re-runs


def test_a_re_run_goes_on_where_the_last_one_ended(history: KeptFolder) -> None:
    """It has the same rounds and takes the next look; together they see what one long run sees."""
    whole, parts = undecided(), undecided(history)
    for number, _ in enumerate(LOOKS):
        if number and number % 2 == 0:
            parts = undecided(history)
        expected, found = look(whole), look(parts)
        assert place(parts) == place(whole)
        assert found.verdict is expected.verdict is Verdict.INCONCLUSIVE
        assert found.change == expected.change
    assert whole.exhausted
    # What eight rounds could not decide stays so, however often it is run again, and nothing more is measured.
    pairing = ScriptedPairing(Build())
    again = a_comparison(pairing, history=history)
    assert again.exhausted
    assert (run_on(again).verdict, pairing.measured) == (Verdict.INCONCLUSIVE, 0)


@pytest.mark.parametrize("change", [0.3, 0.0])
def test_a_kept_decision_is_told_without_measuring(history: KeptFolder, change: float) -> None:
    """A re-run of a decided pair says so, when it was decided and how to forget it, and starts no server."""
    decided = run_on(a_comparison(ScriptedPairing(Build(change)), history=history))
    assert not says(decided, "kept")
    pairing = ScriptedPairing(Build(-change))
    paired = a_comparison(pairing, history=history)
    again = run_on(paired)
    assert (again.verdict, pairing.measured) == (decided.verdict, 0)
    assert [reason.kind for reason in again.reasons].count(ReasonKind.KEPT) == 1
    assert says(again, "--cache-clear")
    # A metric that is first asked now is decided now, though by remembered rounds.
    for _ in range(2):
        first_asked = paired.judge(P50, TOLERANCE)
        assert first_asked.verdict is decided.verdict
        assert not says(first_asked, "kept")


def re_run(seeds: Iterator[int], history: KeptFolder | None, build: Build) -> Verdict:
    """The outcome of a developer who runs a failing test again until it passes, five times at most."""
    for _ in range(6):
        pairing = ScriptedPairing(build, next(seeds))
        verdict = run_on(a_comparison(pairing, history=history, prior=SHAKY_PRIOR), looks=2).verdict
        if verdict.passes:
            break
    return verdict


@pytest.mark.usefixtures("computed_once")
def test_re_run_until_green_cannot_launder_a_regression() -> None:
    """Of 60 changes inside the zone the same ones are REGRESSED with five re-runs as in one long run.

    Without a memory the same re-runs leave less than half of them, so the count would notice.
    """
    build = replace(SHAKY, change=2 * EDGE)
    straight, again, forgetful = [], [], []
    for seed in range(60):
        straight.append(run_on(a_comparison(ScriptedPairing(build, seed), prior=SHAKY_PRIOR)).verdict)
        again.append(re_run(repeat(seed), KeptInMemory(), build))
        forgetful.append(re_run(count(1000 * (seed + 1)), None, build))
    assert again == straight
    assert 4 <= straight.count(Verdict.REGRESSED) <= 30
    assert forgetful.count(Verdict.REGRESSED) < straight.count(Verdict.REGRESSED) / 2


@pytest.mark.usefixtures("computed_once")
def test_going_back_and_forth_between_tolerances_does_not_pass_more_regressions() -> None:
    """Another tolerance asks anew, but of the same rounds and at the look that is due, so it wins no second chance.

    Of 30 changes just as large as the tolerance at most the nominal 5 % pass (10 % leave room for chance), although
    each REGRESSED is forgotten by asking for a neighbouring tolerance and coming back, until the looks are used up.
    """
    build = replace(SHAKY, change=math.log1p(THROUGHPUT.growth(TOLERANCE)))
    passed = regressed = 0
    for seed in range(30):
        kept = KeptInMemory()
        for _ in range(10):
            paired = a_comparison(ScriptedPairing(build, seed), history=kept, prior=SHAKY_PRIOR)
            run_on(paired, 1.001 * TOLERANCE, looks=1)
            verdict = run_on(paired, looks=1).verdict
            if verdict.passes:
                passed += 1
                break
            regressed += verdict is Verdict.REGRESSED
            if not paired.exhausted:
                paired.more()
        assert len(paired.rounds) <= 8
    assert regressed > 30
    assert passed / 30 <= 0.10


def test_a_round_in_a_starved_hour_teaches_nothing_about_starts() -> None:
    """A round in which others took the host is evidence, but later comparisons do not learn from its spread."""
    history, pairing = KeptInMemory(), ScriptedPairing()
    quiet, busy = round_of([0.01] * 6), round_of([0.4] * 6)
    starved = replace(busy, starts={arm: (replace(start, foreign_cores=1.0),) for arm, (start,) in busy.starts.items()})
    paired = a_comparison(pairing, history=history)
    pairing.rounds.extend([quiet, starved, quiet])
    paired.judge(THROUGHPUT, TOLERANCE)
    (kept,) = history.kept.values()
    assert [max(differences) for differences in kept.metrics["throughput"].differences] == pytest.approx([0.01, 0.01])
    assert len(kept.rounds) == 3


class Talkative(ScriptedPairing):
    """A candidate whose answers are longer; ``silent`` sides do not say how long theirs are."""

    silent: frozenset[str] = frozenset()
    tokens = 12

    def _round(self, number: int, blocks: int) -> Round:
        measured = super()._round(number, blocks)
        return with_windows(
            measured,
            lambda arm, each: streamed(each, tokens=11 if arm == "base" else self.tokens, usage=arm not in self.silent),
        )


@pytest.mark.parametrize(
    ("silent", "tokens", "kind"),
    [
        ((), 12, ReasonKind.UNLIKE_WORK),
        # Chunks may differ by more than tokens.
        (ARMS, 14, ReasonKind.UNLIKE_WORK),
        *(((arm,), 12, ReasonKind.WORK_UNKNOWN) for arm in ARMS),
    ],
)
def test_longer_answers_are_another_work(silent: tuple[str, ...], tokens: int, kind: ReasonKind) -> None:
    """Longer answers, or lengths that one side hides, make all metrics but the cold start INVALID."""
    history = KeptInMemory()
    for _ in range(2):
        pairing = Talkative()
        pairing.silent, pairing.tokens = frozenset(silent), tokens
        paired = a_comparison(pairing, prior=NARROW, history=history)
        judgement = look(paired, 2)
        for each in (judgement, paired.judge_limit(THROUGHPUT, 0.5)):
            assert (each.verdict, [reason.kind for reason in each.reasons]) == (Verdict.INVALID, [kind])
        assert len(paired.rounds) == 1
    assert paired.judge(COLD_START, 0.2).verdict is not Verdict.INVALID


@pytest.mark.parametrize(
    ("sizes", "kind", "verdict"),
    [
        ((40, 400), "baseline", Verdict.INVALID),
        ((400, 290), "against", Verdict.INVALID),
        # A fault that answers with nothing.
        ((40, 0), "baseline", Verdict.INVALID),
        ((400, 310), "baseline", Verdict.PASS),
        ((0, 0), "baseline", Verdict.PASS),
        # Two servers of a duel may differ in format.
        ((40, 400), "duel", Verdict.PASS),
    ],
)
def test_unchecked_answers_of_another_size_prove_nothing(
    sizes: tuple[int, int], kind: ReferenceKind, verdict: Verdict
) -> None:
    """Answers that no ``expect=`` checks may be errors: two builds whose answers differ in size are INVALID."""

    class Sized(ScriptedPairing):
        def _round(self, number: int, blocks: int) -> Round:
            of = dict(zip(ARMS, sizes, strict=True))
            return with_windows(
                super()._round(number, blocks),
                lambda arm, each: msgspec.structs.replace(
                    each, sized=each.requests, sized_bytes=of[arm] * each.requests
                ),
            )

    judgement = look(replace(a_comparison(Sized(), prior=NARROW), kind=kind), 2)
    assert judgement.verdict is verdict
    assert judgement.has(ReasonKind.UNLIKE_ANSWERS) is (verdict is Verdict.INVALID)


def test_answers_whose_length_neither_side_tells_are_a_remark() -> None:
    """At every verdict on metrics of answers, and on ratios in a duel."""
    pairing = Talkative()
    pairing.silent, pairing.tokens = frozenset(ARMS), 11
    paired = a_comparison(pairing, prior=NARROW)
    for each in (look(paired, 2), paired.judge_limit(THROUGHPUT, 0.5), paired.judge_limit(THROUGHPUT, 0.5)):
        assert each.verdict is Verdict.PASS
        assert [reason.kind for reason in each.reasons].count(ReasonKind.WORK_UNKNOWN) == 1
    assert not paired.judge(COLD_START, 0.2).has(ReasonKind.WORK_UNKNOWN)


# -- trouble that shows late

NOT_GIVEN_BACK = because("memory not given back", kind=ReasonKind.MEMORY_NOT_GIVEN_BACK)


class Leaking(ScriptedPairing):
    """Servers whose problem shows only at their end, and invalidates their round."""

    def close(self) -> None:
        """See `ScriptedPairing`."""
        was_open = self.blocks_of_open_round > 0
        super().close()
        if was_open:
            self.rounds[-1] = replace(self.rounds[-1], problems=NOT_GIVEN_BACK)
            self.on_late_trouble()


def test_a_pass_is_not_remembered_of_servers_that_left_memory_behind() -> None:
    """Their round passed at the first look; a re-run knows neither the round nor the verdict, and measures it again."""
    history = KeptInMemory()
    first = a_comparison(Leaking(), prior=NARROW, history=history)
    assert look(first).verdict is Verdict.PASS
    assert first.judge(P50, TOLERANCE).rounds == 1
    first.stop_load()
    assert first.judge(THROUGHPUT, TOLERANCE).reasons == NOT_GIVEN_BACK
    (kept,) = history.kept.values()
    assert kept.rounds == ()
    assert kept.metrics == {name: KeptMetric(TOLERANCE) for name in ("throughput", "latency.p50")}
    again = a_comparison(ScriptedPairing(Build(change=0.3)), prior=NARROW, history=history)
    assert look(again).verdict is Verdict.REGRESSED


def test_trouble_at_the_end_of_a_round_that_ends_early_costs_no_other_round() -> None:
    """It is INVALID at once."""
    pairing = Leaking(Build(0.03, start_sd=0.01), start_in_blocks=1.5)
    paired = a_comparison(pairing)
    assert [look(paired).verdict for _ in range(2)] == [Verdict.INCONCLUSIVE, Verdict.INVALID]
    assert (place(paired), pairing.measured) == ((1, 3), 1)


def test_a_test_that_goes_on_after_such_a_round_is_invalid() -> None:
    """The round is not remembered, but its trouble is, until another try begins."""
    first = a_comparison(Leaking(), prior=NARROW)
    assert look(first).verdict is Verdict.PASS
    first.stop_load()
    fresh: Any = ScriptedPairing()
    assert replace(first, pairing=fresh).judge(THROUGHPUT, TOLERANCE).reasons == NOT_GIVEN_BACK
    first.memory.begin_try()
    assert replace(first, pairing=fresh).problems == ()


def test_a_round_with_trouble_is_no_evidence_in_a_re_run(history: KeptFolder) -> None:
    """It is not remembered, but what was decided before it is: the re-run has the sound rounds and their decision."""
    first = a_comparison(Leaking(problems={1: ("it died",)}), prior=NARROW, history=history)
    assert [look(first).verdict for _ in range(3)] == [Verdict.PASS, Verdict.PASS, Verdict.INVALID]
    other = ScriptedPairing()
    again = a_comparison(other, prior=NARROW, history=history)
    assert again.judge(THROUGHPUT, TOLERANCE).verdict is Verdict.PASS
    assert (len(again.rounds), again.problems, other.measured) == (1, (), 0)


# -- cold starts


def started(base: float, candidate: float) -> Round:
    """A round of servers that took so long to start."""
    return with_starts(round_of([0.0] * 6), [base], [candidate])


def test_the_values_of_cold_starts_are_of_the_rounds_that_are_judged() -> None:
    """The first round, whose first start reads from the disk, is in no verdict, value or ratio, nor in what is learned.

    There the candidate took eight times as long; in all others both took as long.
    """
    history, pairing = KeptInMemory(), ScriptedPairing()
    paired = a_comparison(pairing, history=history)
    pairing.rounds.append(started(10.0, 80.0))
    alone = paired.judge(COLD_START, 0.2)
    assert (alone.value, alone.reference) == (80.0, 10.0)
    pairing.rounds.extend([started(10.0, 10.0), started(11.0, 11.0)])
    judged = paired.judge(COLD_START, 0.2)
    assert (judged.verdict, judged.value, judged.reference) == (Verdict.PASS, 10.5, 10.5)
    limited = paired.judge_limit(COLD_START, 1.3)
    assert (limited.verdict, limited.value) == (Verdict.PASS, 1.0)
    (kept,) = history.kept.values()
    assert kept.metrics["cold_start"].differences == ((0.0,), (0.0,))
    assert len(kept.rounds) == 3


def test_a_cold_start_is_not_judged_by_servers_that_started_at_the_same_time() -> None:
    """Such a metric gets further rounds, in which one server starts after the other."""
    pairing = ScriptedPairing()
    paired = a_comparison(pairing)
    pairing.rounds.extend(replace(started(10.0, 30.0), together=True) for _ in range(2))
    assert paired.judge(THROUGHPUT, TOLERANCE).verdict is Verdict.PASS
    assert pairing.starts_together
    asked = paired.judge(COLD_START, 0.2)
    assert (asked.verdict, asked.value, asked.reasons) == (Verdict.INCONCLUSIVE, None, (NOT_LOOKED_AT,))
    assert not pairing.starts_together
    pairing.rounds.extend([started(10.0, 10.0)] * 2)
    assert paired.judge(COLD_START, 0.2).value == 10.0


# -- a build beside itself


def test_a_claim_about_one_build_is_not_remembered(history: KeptFolder) -> None:
    """A claim about one build is forgotten, because its cause, outside git, may be gone in the next run."""
    first = a_comparison(ScriptedPairing(Build(0.35)), history=history)
    first.left_out = ()
    while (judged := look(first)).verdict is Verdict.INCONCLUSIVE:
        pass
    assert judged.has(ReasonKind.OUTSIDE_GIT)
    assert a_comparison(history=history).rounds == []


@pytest.mark.parametrize("verdict", Verdict)
def test_no_claim_is_made_of_one_build(verdict: Verdict) -> None:
    """REGRESSED and IMPROVED become INVALID; other verdicts stay."""
    judged = judge_one_build(judgement(verdict), ())
    assert judged.verdict is (Verdict.INVALID if verdict.is_claim else verdict)


@pytest.mark.parametrize(
    ("left_out", "end"), [((), "warm caches)"), (("a", "b", "c", "d"), "the base does not have a, b, c and 1 more")]
)
def test_what_was_left_out_is_named(left_out: tuple[str, ...], end: str) -> None:
    """Files that the base lacks are the most likely cause, and at most three of them are named."""
    (reason,) = judge_one_build(judgement(Verdict.REGRESSED), left_out).reasons
    assert reason.kind is ReasonKind.OUTSIDE_GIT
    assert str(reason).endswith(end)
