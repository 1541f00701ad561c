"""Explanations of judgements, and of the parts that moved, from counts alone."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from pytest_gpuserve.report.attribution import STAGE, attribution
from pytest_gpuserve.report.explain import basis, explain, reasons_of
from pytest_gpuserve.verdict.verdict import ReferenceKind, Verdict
from tests.support.builders import judgement

KINDS: tuple[ReferenceKind, ...] = get_args(ReferenceKind)


def test_a_regression_explains_itself() -> None:
    """Measured, baseline, change, what moved; interval and evidence, what to type; then why, and the rest."""
    text = explain(
        judgement(reasons=("first", "second\nline")),
        {"latency.p50": 0.4, "latency.p99": -0.02, "batching_ratio": -0.031},
        ["to accept the new number: pytest t --gpu=cpu"],
        ["moved with it: compute per batch 4.10 ms -> 4.52 ms (+10.2 %)", "of the whole: 98 %", "not counted: queue"],
    )
    assert text == [
        "REGRESSED: throughput is 1432/s, baseline 2047/s: -30.1 % (tolerance 5 %)",
        "moved with it: compute per batch 4.10 ms -> 4.52 ms (+10.2 %)",
        "interval -34.1 % to -26.2 %, from 2 sessions",
        "of the whole: 98 %",
        "to accept the new number: pytest t --gpu=cpu",
        "first",
        "second",
        "line",
        "metrics that moved with it: latency.p50 +40.0 %, batching_ratio -3.1 %",
        "not counted: queue",
    ]


@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("kind", KINDS)
def test_every_judgement_can_be_explained(verdict: Verdict, kind: ReferenceKind) -> None:
    """No verdict or reference makes the explanation itself fail; the verdict comes first, and steps are shown."""
    lines = explain(judgement(verdict, kind=kind), {"latency.p50": 0.5}, ["to record it: pytest t"])
    assert lines[0].startswith(f"{verdict}: throughput")
    assert "to record it: pytest t" in lines
    assert not any("None" in line for line in lines)


def test_small_moves_explain_nothing() -> None:
    """Metrics that hardly moved, moved by an unknown amount, or belong to a pass are not named."""
    moved = {"latency.p50": 0.029, "latency.p90": float("nan")}
    assert not any("moved" in line for line in explain(judgement(), moved))
    assert not any("moved" in line for line in explain(judgement(Verdict.PASS), {"latency.p50": 0.5}))
    assert explain(judgement(Verdict.MISSING, reasons=("no entry",)), {}) == ["MISSING: throughput", "no entry"]


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_is_counted_in_its_own_unit(kind: ReferenceKind) -> None:
    """Side by side it is rounds, else sessions; an undecided verdict alone says which change would have been seen."""
    unit = "round" if kind in ("against", "duel") else "session"
    seen = replace(judgement(kind=kind), rounds=3, windows=72)
    assert basis(seen) == f"interval -34.1 % to -26.2 %, from 3 {unit}s (72 windows)"
    assert basis(replace(seen, interval=None, rounds=1, windows=1)) == f"from 1 {unit} (1 window)"
    thin = replace(seen, verdict=Verdict.INCONCLUSIVE, interval=None, detectable=0.06)
    assert basis(thin) == f"from 3 {unit}s (72 windows), a change of 6 % would have been seen"


@pytest.mark.parametrize(("metric", "worse"), [("throughput", -1), ("latency.p50", 1)])
def test_a_regression_within_the_tolerance_says_why_it_is_one(metric: str, worse: int) -> None:
    """The note explains a change of 21.6 % at a tolerance of 30 %, in both directions."""
    interval = min(worse * 0.35, worse * 0.11), max(worse * 0.35, worse * 0.11)
    seen = replace(judgement(metric=metric, reasons=("a reason",)), change=worse * 0.216, interval=interval)
    seen = replace(seen, tolerance=0.3)
    reaches = f"the interval reaches {worse * 35:+.1f} %"
    why = f"the change is within the tolerance of 30 %, but {reaches}"
    assert explain(seen, {})[2] == why
    assert tuple(map(str, reasons_of(seen))) == (why, "a reason")
    for other in ({"tolerance": 0.2}, {"tolerance": 0.4}, {"tolerance": None}, {"verdict": Verdict.PASS}):
        assert list(map(str, reasons_of(replace(seen, **other)))) == ["a reason"]


NAMES = {
    "mean": "mean latency",
    "p99": "latency.p99",
    "client_cores": "client",
    "client": "client lag p99",
    "formation_items": "batch formation",
    "filling": "time to fill a batch",
    "compute_of_batch": "compute per batch",
    "queue_of_server": "queue (the server's time less compute)",
    "outside": "network and client",
    "ttft": "queue and prefill (TTFT)",
    "tpot": "decode a token (TPOT)",
    "tokens": "tokens an answer",
    "cached": "prompt tokens from the prefix cache",
    "preempted": "preemptions",
}


def named(values: dict[str, float]) -> dict[str, float]:
    """The values by the names of the parts."""
    return {NAMES.get(name, name): value for name, value in values.items()}


BEFORE = named(
    {
        "mean": 0.0100,
        "p99": 0.0120,
        "client_cores": 0.04,
        "client": 12e-6,
        "formation_items": 7.97,
        "filling": 187e-6,
        "compute_of_batch": 0.0041,
        f"{STAGE}Preprocess_1": 0.0008,
        "queue_of_server": 0.0031,
        "outside": 0.0020,
    }
)
OF_STREAMS = {"ttft": 0.02, "decode": 0.08, "tpot": 0.004, "tokens": 21.0, "cached": 0.62, "preempted": 0.0}
STREAM = named({"mean": 0.100, "p99": 0.120, "client_cores": 0.04, **OF_STREAMS})


def moved_to(**after: float) -> list[str]:
    """The lines of a comparison with what differs."""
    return attribution(BEFORE, {**BEFORE, **named(after)})


def lines(**after: float) -> dict[str, str]:
    """The lines of a comparison with what differs, by their label."""
    return labelled(moved_to(**after))


def labelled(found: list[str]) -> dict[str, str]:
    """Lines by what stands before their colon."""
    return {label: text for label, _, text in (line.partition(": ") for line in found)}


def test_slower_computation_is_named_with_its_share() -> None:
    """The lines name moved parts, their shares of the growth, unmoved and unknown parts, and places to look."""
    assert moved_to(mean=0.0107, compute_of_batch=0.00452, queue_of_server=0.00338) == [
        (
            "moved with it: queue (the server's time less compute) 3.10 ms -> 3.38 ms (+9.0 %), compute per batch"
            " 4.10 ms -> 4.52 ms (+10.2 %)"
        ),
        (
            "of the mean latency's +700 us: compute per batch +420 us (60 %), queue (the server's time less compute)"
            " +280 us (40 %)"
        ),
        (
            "did not move: client lag p99 12.0 us, client 4 % of a core, network and client 2.00 ms, batch formation"
            " 7.97 items, time to fill a batch 187 us, compute of Preprocess_1 800 us"
        ),
        "look at: the model, its kernels, the clocks",
    ]


QUEUE = "queue (the server's time less compute) 3.10 ms -> 5.10 ms (+64.5 %)"
MOVED: dict[str, tuple[dict[str, float], str]] = {
    "arrivals and scheduling (the queue moved alone)": ({"queue_of_server": 0.0051}, QUEUE),
    "batches (batching window, max_batch_size, arrivals)": (
        {"queue_of_server": 0.0051, "formation_items": 4.0},
        f"{QUEUE}, batch formation 7.97 -> 4.00 items (-49.8 %)",
    ),
    "the measuring machine and the way to the server": (
        {"p99": 0.02, "client": 0.005, "outside": 0.004},
        "client lag p99 12.0 us -> 5.00 ms, network and client 2.00 ms -> 4.00 ms (+100.0 %)",
    ),
    "the stage Preprocess_1": (
        {f"{STAGE}Preprocess_1": 0.0028},
        "compute of Preprocess_1 800 us -> 2.80 ms (+250.0 %)",
    ),
}


@pytest.mark.parametrize("look_at", MOVED)
def test_what_moved_says_where_to_look(look_at: str) -> None:
    """A part that moved alone is suspected, an unmoved one is not."""
    after, moved = MOVED[look_at]
    found = lines(mean=0.012, **after)
    assert (found["moved with it"], found["look at"]) == (moved, look_at)


def test_computation_in_step_with_batches_blames_neither() -> None:
    """If batches grew and took longer, either may cause the other; beyond proportion it is the work."""
    grown = {"mean": 0.014, "formation_items": 15.94}
    assert lines(compute_of_batch=0.0065, **grown)["look at"].endswith("or compute: either may follow from the other")
    assert lines(compute_of_batch=0.0121, **grown)["look at"].endswith("; the model, its kernels, the clocks")
    shrunk = lines(mean=0.014, formation_items=4.0, compute_of_batch=0.0082)["look at"]
    assert shrunk.endswith("; the model, its kernels, the clocks")


def test_a_tail_alone_is_not_explained_by_means() -> None:
    """p99 that doubled beside the same mean is said to be beyond what the counters tell."""
    found = moved_to(p99=0.024)
    assert found[0] == "moved with it: nothing that was counted"
    assert found[-1].startswith("latency.p99 +100.0 %, but the mean latency +0.0 %")
    assert not any("look at" in line for line in found)
    for small_or_with_the_mean in (moved_to(p99=0.0125), moved_to(p99=0.024, mean=0.012)):
        assert not any("latency.p99" in line for line in small_or_with_the_mean)


def test_what_only_one_side_counts_is_not_compared() -> None:
    """With a baseline without stages none has moved, and their names say that they were not counted."""
    old = named({"mean": 0.008, "p99": 0.009, "client_cores": 0.04, "formation_items": 7.97})
    for sides in ((old, BEFORE), (BEFORE, old)):
        found = labelled(attribution(*sides))
        assert found["moved with it"] == "nothing that was counted"
        assert found["not counted"] == (
            "client lag p99, network and client, queue (the server's time less compute), time to fill a batch,"
            " compute per batch, compute of Preprocess_1"
        )
        assert found["did not move"] == "client 4 % of a core, batch formation 7.97 items"
        assert "look at" not in found


@pytest.mark.parametrize(
    ("after", "moved", "look_at"),
    [
        (
            {"mean": 0.11, "ttft": 0.03},
            "queue and prefill (TTFT) 20.0 ms -> 30.0 ms (+50.0 %)",
            "queue and prefill (prompts, prefix cache, slots)",
        ),
        (
            {"mean": 0.12, "decode": 0.1, "tpot": 0.005},
            "decode 80.0 ms -> 100 ms (+25.0 %), decode a token (TPOT) 4.00 ms -> 5.00 ms (+25.0 %)",
            "decode (sequences a step, kernels, speculation)",
        ),
        # As fast for each of them.
        (
            {"mean": 0.12, "decode": 0.1, "tokens": 26.0},
            "decode 80.0 ms -> 100 ms (+25.0 %), tokens an answer 21.00 -> 26.00 (+23.8 %)",
            "why answers have another number of tokens (max_tokens, stop, sampling)",
        ),
        (
            {"cached": 0.03},
            "prompt tokens from the prefix cache 62 % -> 3 % (-95.2 %)",
            "the prefix cache (its setting, its size, the prompts)",
        ),
        (
            {"preempted": 31.0},
            "preemptions 0 -> 31 in 1000 requests",
            "the size of the KV cache, and how many sequences share it",
        ),
    ],
    ids=["prefill", "decode", "unequal work", "prefix cache", "preempted"],
)
def test_a_streams_latency_is_that_of_its_first_token_and_of_the_rest(
    after: dict[str, float], moved: str, look_at: str
) -> None:
    """Without the server's counters, the length of answers is distinguished from their speed."""
    found = labelled(attribution(STREAM, {**STREAM, **named(after)}))
    assert (found["moved with it"], found["look at"]) == (moved, look_at)
