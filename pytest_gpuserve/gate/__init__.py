"""Verdicts from numbers: pure functions without clocks, files, processes or randomness."""

from pytest_gpuserve.gate.metric import METRICS, Metric, log_cost, metric_by_option, requests_needed
from pytest_gpuserve.gate.occasions import withstand_drift
from pytest_gpuserve.gate.stored import SessionPoint, StoredResult, judge_stored
from pytest_gpuserve.gate.verdict import Evidence, Judgement, ReferenceKind, Verdict

__all__ = [
    "METRICS",
    "Evidence",
    "Judgement",
    "Metric",
    "ReferenceKind",
    "SessionPoint",
    "StoredResult",
    "Verdict",
    "judge_stored",
    "log_cost",
    "metric_by_option",
    "requests_needed",
    "withstand_drift",
]
