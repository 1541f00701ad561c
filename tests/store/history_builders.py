"""Small rounds, pairs and sequences for the tests of what is remembered of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from pytest_gpuserve.gate.sequential import LookResult
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime
from pytest_gpuserve.measure.rounds import ABBA, ArmResult, Block, Round
from pytest_gpuserve.measure.window import Client
from pytest_gpuserve.store.sequence import KeptMetric, KeptSequence, SequenceKey, Subject
from tests.support.builders import window

TODAY = "2025-01-02T03:04:05+00:00"

SUBJECT = Subject(
    nodeid="test_y.py::test_a[1]",
    label="burst",
    host="host-a",
    device="cpu",
    workload={"server": "mosec", "concurrency": "50"},
)


def days_later(days: float, moment: str = TODAY) -> str:
    """A moment so many days after another."""
    return (datetime.fromisoformat(moment) + timedelta(days=days)).isoformat(timespec="seconds")


def pair(candidate: str = "c" * 64, subject: Subject = SUBJECT) -> SequenceKey:
    """A pair of builds."""
    return SequenceKey(subject, base="b" * 64 + " python 3.11.7", candidate=candidate, software={"mosec": "0.9.5"})


def small_round(at: str = TODAY) -> Round:
    """A round of one block, which is quickly read."""
    part = Counters(20, 5, {"4": 5}, {"compute": StageTime(0.5, 5)}, requests=20)
    side = ArmResult(
        (1.5,),
        Client(sending_seconds=0.25, receiving_seconds=0.0),
        batch_sizes={"4": 10},
        answers=20,
        answers_checked=20,
        cold_start_parts={"import": 1.25},
        settings={"batch": ServerSetting("32", None), "delay": ServerSetting(None, "10")},
        counters=replace(part, parts={"model": part}),
    )
    return Round((Block(ABBA, (window((0.01, 0.02)),) * 4),), "base", {"base": side, "candidate": side}, at)


def small_sequence(*differences: tuple[float, ...], rounds: int = 1) -> KeptSequence:
    """A sequence of one metric with a decision and one without."""
    metrics = {
        "throughput": KeptMetric(
            0.05,
            (LookResult(0, 0.4, 0.02, 0.6), LookResult(1, 0.5, 0.001, 0.5)),
            Verdict.PASS,
            differences or ((0.01, -0.02),),
        ),
        "latency.p99": KeptMetric(0.2, (LookResult(1, 0.3, 0.2, 0.7),)),
    }
    return KeptSequence((small_round(),) * rounds, metrics, TODAY)
