"""Verdicts from numbers: pure functions without clocks, files, processes or randomness."""

from pytest_gpuserve.gate.family import Family
from pytest_gpuserve.gate.metric import METRICS, Growth, Metric, log_cost, metric_by_option, requests_needed
from pytest_gpuserve.gate.occasions import withstand_drift
from pytest_gpuserve.gate.paired import (
    LimitEvidence,
    Prior,
    RoundPoint,
    default_prior,
    paired_claim,
    paired_evidence,
    paired_limit_verdict,
    paired_verdict,
)
from pytest_gpuserve.gate.priors import learn_prior
from pytest_gpuserve.gate.sequential import LOOKS, Seen, adjusted_p, first_look, levels, look_index
from pytest_gpuserve.gate.stored import SessionPoint, StoredResult, judge_stored
from pytest_gpuserve.gate.verdict import Evidence, Judgement, ReferenceKind, Verdict

__all__ = [
    "LOOKS",
    "METRICS",
    "Evidence",
    "Family",
    "Growth",
    "Judgement",
    "LimitEvidence",
    "Metric",
    "Prior",
    "ReferenceKind",
    "RoundPoint",
    "Seen",
    "SessionPoint",
    "StoredResult",
    "Verdict",
    "adjusted_p",
    "default_prior",
    "first_look",
    "judge_stored",
    "learn_prior",
    "levels",
    "log_cost",
    "look_index",
    "metric_by_option",
    "paired_claim",
    "paired_evidence",
    "paired_limit_verdict",
    "paired_verdict",
    "requests_needed",
    "withstand_drift",
]
