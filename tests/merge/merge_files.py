"""Result files of shards, for the tests of what merges them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.merge.merged import merge
from pytest_gpuserve.merge.shards import PASSING, read_shard
from pytest_gpuserve.report.result_json import document
from pytest_gpuserve.report.results import Ending, RunResult, SessionResult, TestResult
from tests.support.builders import COMMIT, judgement, session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpuserve.gate.verdict import Judgement, ReferenceKind
    from pytest_gpuserve.merge.merged import Merged
    from pytest_gpuserve.report.schema import Plain

    FieldsOfVerdicts = Mapping[int, Mapping[str, Any]]

T4 = {"name": "T4", "product": "Tesla T4", "pci_bus_id": "0000:00:1e.0", "card_id": "sha256:1"}
HOST = {"id": "host-a", "cores": 8}


def at(second: int) -> str:
    """A moment of one day."""
    return f"2025-01-02T03:{second // 60:02d}:{second % 60:02d}+00:00"


def a_test(
    name: str, *judgements: Judgement, outcome: str = "passed", sessions_at: Sequence[str] = (), problem: str = ""
) -> TestResult:
    """A test of one load; one that passed without a judgement has one that passes."""
    found = judgements or ((judgement(Verdict.PASS),) if outcome == "passed" else ())
    sessions = tuple(session(at=each) for each in sessions_at) or (session(),)
    runs = [RunResult("", sessions, found, {"load": "closed loop"}, {"server": "mosec"})] if found else []
    return TestResult(f"suites/x/test_x.py::{name}", outcome, runs, problem)


def regressed(name: str, *, kind: ReferenceKind = "against", sessions_at: Sequence[str] = ()) -> TestResult:
    """A test whose throughput has REGRESSED."""
    return a_test(
        name,
        judgement(Verdict.REGRESSED, kind=kind),
        outcome="failed",
        sessions_at=sessions_at,
        problem="it does not hold",
    )


def shard(
    *tests: TestResult,
    began: int = 0,
    gpu: Mapping[str, Any] = T4,
    host: Mapping[str, Any] = HOST,
    commit: str | None = COMMIT,
    clean: bool = True,
    notes: Sequence[str] = (),
    software: Mapping[str, str] | None = None,
    verdicts: FieldsOfVerdicts | None = None,
    **head: Any,  # noqa: ANN401 -- fields of the file
) -> Plain:
    """The result file of a shard, as plain values; pytest has ended as its tests say, unless `head` has an ending.

    Args:
        tests: Its tests.
        began: Seconds after the first shard could have begun.
        gpu: The device.
        host: The host.
        commit: The code.
        clean: Whether it was that.
        notes: A line each.
        software: Versions.
        verdicts: Further fields of the verdicts, by their places in the whole file.
        head: Further fields of the file.
    """
    status = int(any(test.outcome not in PASSING for test in tests))
    result = SessionResult(
        gpu,
        host,
        tests,
        tuple(notes),
        at=at(began),
        commit=commit,
        clean=clean,
        software=software or {},
        ending=Ending(status, complete=True, unlisted_failures=0),
    )
    plain: Plain = json.loads(document(result))
    # Said by each test that is about them.
    for name in ("mode", "shard", "comparisons", "dealt", "unlisted", "against"):
        plain.pop(name, None)
    plain.update({name: value for name, value in head.items() if value is not None})
    every = [verdict for test in plain["tests"] for verdict in test["verdicts"]]
    for place, fields in (verdicts or {}).items():
        every[place].update(fields)
    return plain


def ending(status: int = 0, *, complete: bool = True, unlisted_failures: int = 0) -> dict[str, Any]:
    """How pytest ended."""
    return {"exit_status": status, "complete": complete, "unlisted_failures": unlisted_failures}


def merged(*plains: Plain, expected: int | None = None) -> Merged:
    """These files as one."""
    shards = [
        read_shard(f"{'abcdefghij'[number]}.json", json.dumps(plain).encode()) for number, plain in enumerate(plains)
    ]
    return merge(shards, expected=expected)


def verdicts_of(result: Merged) -> dict[str, str]:
    """The last verdict of each test, by the test's name."""
    return {
        test.nodeid.rpartition("::")[2]: str(run.judgements[-1].verdict) for test in result.tests for run in test.runs
    }
