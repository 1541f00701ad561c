"""A run against a published number: what may be compared with what, what it comes to, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_gpuserve.comparison.assertions import Run
from pytest_gpuserve.comparison.measurement import Measurement
from pytest_gpuserve.comparison.numbers import (
    NO_CLAIM,
    Published,
    disagreements,
    find_published,
    items_of,
    judge_published,
    suite_of,
)
from pytest_gpuserve.device.card import Card
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.handle import Target
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.gate.metric import METRICS, Metric
from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Burst, Closed, Constant, Steps
from pytest_gpuserve.report.explain import explain
from pytest_gpuserve.report.terminal import table
from pytest_gpuserve.store.published import NothingPublished, PublishedEntry
from tests.comparison.vocabulary import ALL, Listener, entry, side
from tests.support.builders import result_of, session, start, window
from tests.support.published_files import published_file, record
from tests.support.reasons import said

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.experiment.handle import ServerHandle
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.measure.window import Session

T4 = Card(0, "Tesla T4", "T4", "GPU-1", None, None, None, None, None, None, None)
A30 = replace(T4, product="NVIDIA A30", name="A30")
THROUGHPUT, P50 = METRICS["throughput"], METRICS["latency.p50"]
POST = Request("POST", "/inference", b"fox")


@ALL
def test_a_metric_that_was_not_printed_has_no_number(metric: Metric) -> None:
    """It names the entry and what was printed; an absent p99 is neither 0 nor a pass, and counters are no metric."""
    if metric not in {THROUGHPUT, P50}:
        with pytest.raises(UsageProblem) as caught:
            side(Published(entry()), metric)
        assert f"{metric.name} was not printed in results/bert.md line 79 (system='mosec'" in str(caught.value)
        assert "printed: throughput, latency.p50" in str(caught.value)
    with pytest.raises(UsageProblem, match=f"{metric.name} was not printed") as caught:
        side(Published(entry(values={}, printed=None)), metric)
    assert "no metric of a run was printed there" in str(caught.value)


def test_texts_for_people() -> None:
    """A failed assertion shows the number and where it stands."""
    published = Published(entry())
    assert repr(published.throughput) == "published.throughput 20.0/s"
    assert repr(published) == "Published(results/bert.md line 79 (system='mosec', batch=1, concurrency=50))"


def measured(run: Run, schedule: Schedule = Closed(50), *sent: Request) -> Measurement:  # noqa: B008 -- it is frozen
    """A run under a load of these requests."""
    target = Target(cast("ServerHandle", None), sent or (POST,))
    nothing: Any = None
    return Measurement(run, target, LoadShape(schedule), *[nothing] * 4)


def judged(
    number: PublishedEntry,
    *sessions: Session,
    metric: Metric = THROUGHPUT,
    card: Card | None = T4,
    schedule: Schedule = Closed(50),  # noqa: B008 -- it is frozen
    sent: Request = POST,
) -> Judgement:
    """What a run of these sessions comes to; by default it answers 20 requests a second in 10 ms each."""
    run = Run("", Listener(), list(sessions or (session(),)), card)
    return judge_published(measured(run, schedule, sent), metric, number, tolerance=metric.default_tolerance)


def printed(throughput: float, p50: float = 0.010) -> PublishedEntry:
    """An entry of these numbers."""
    return entry(
        values={"throughput": throughput, "latency.p50": p50},
        printed={"throughput": throughput, "unit": "requests/s"},
    )


@pytest.mark.parametrize(
    ("number", "metric", "verdict"),
    [
        (printed(20.9), THROUGHPUT, Verdict.PASS),
        (printed(21.1), THROUGHPUT, Verdict.REGRESSED),
        (printed(1.0), THROUGHPUT, Verdict.PASS),
        (printed(1.0, 0.0096), P50, Verdict.PASS),
        (printed(1.0, 0.0094), P50, Verdict.REGRESSED),
        (printed(1.0, 9.0), P50, Verdict.PASS),
    ],
)
def test_it_passes_up_to_the_tolerance(number: PublishedEntry, metric: Metric, verdict: Verdict) -> None:
    """A value may be worse by 5 %, as against a baseline; without samples it is never IMPROVED, and has no interval."""
    found = judged(number, metric=metric)
    reference = number.record.values[metric.name]
    assert (found.verdict, found.reference, found.tolerance) == (verdict, reference, 0.05)
    assert found.value is not None
    assert found.change == pytest.approx(found.value / reference - 1)
    assert (found.interval, found.detectable, found.p_regressed) == (None, None, None)
    assert found.reference_kind == "published"
    assert NO_CLAIM in said(found.reasons)


def test_all_sessions_are_pooled() -> None:
    """As with a limit, also of a run that was measured beside another server."""
    slow = start(*[window(seconds=1.0)] * 4)
    assert judged(printed(20), session(), session(slow, slow)).value == pytest.approx(40 / 3)


@pytest.mark.parametrize("bias", [["0.72 of it", "cold"], []])
def test_it_says_where_the_number_is_from_and_what_is_wrong_with_it(bias: list[str]) -> None:
    """Document, line, tool, load and bias are told with a pass and with a failure, and so is what else was printed."""
    found = judged(entry(printed={"throughput": 320.0, "unit": "inferences/s"}, bias=bias))
    assert "published: someone/bench results/bert.md, line 79; hey: hey -c 50" in said(found.reasons)
    assert "throughput is printed as 320 inferences/s" in said(found.reasons)
    assert [reason for reason in said(found.reasons) if reason.startswith("bias")] == [f"bias: {each}" for each in bias]
    assert "printed as" not in " ".join(said(judged(printed(20)).reasons))


def test_what_cannot_be_judged_is_no_pass() -> None:
    """A run that went wrong, before what is wrong with the comparison; a metric that it lacks; too few requests."""
    found = judged(printed(20), session(problems=("it died",)), card=None)
    assert (found.verdict, said(found.reasons)) == (Verdict.INVALID, ("it died",))
    # A server that counts no batches has not reached a printed batching ratio.
    uncounted = start(window(items=None, batches=None))
    ratio = entry(values={"batching_ratio": 4.0}, printed=None)
    assert judged(ratio, session(uncounted, uncounted), metric=METRICS["batching_ratio"]).verdict is Verdict.INVALID
    found = judged(entry(values={"latency.p99": 1.0}, printed=None), metric=METRICS["latency.p99"])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "latency.p99 needs 1000 requests, there are 80" in found.reasons[0].text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"card": A30}, "the published number is of T4, and this run was on A30"),
        ({"card": None}, "the published number is of T4, and nobody knows on which card this server ran"),
        (
            {"schedule": Closed(51)},
            "the published number is of a closed loop of 50 users who send at once, this load is: closed loop, 51",
        ),
        ({"schedule": Closed(50, think_seconds=1)}, "this load is: closed loop, 50, 1"),
        ({"schedule": Constant(50)}, "this load is: open loop, constant, 50"),
        (
            {"sent": Request("POST", "/v2/models/m/infer", b'{"inputs": [{"shape": [16, 3]}]}')},
            "the published number is of 1 items a request, this run's requests carry 16",
        ),
    ],
)
def test_what_is_not_alike_is_not_compared(changes: dict[str, Any], reason: str) -> None:
    """Another device, load or size of a request: MISSING with that reason, and never a pass, however good the run."""
    found = judged(printed(0.001), **changes)
    assert found.verdict is Verdict.MISSING
    assert found.reasons[0].text.endswith(reason)
    assert found.reasons[-1].text.startswith("published: someone/bench")
    assert [each.kind for each in found.reasons] == [ReasonKind.NOT_COMPARABLE, ReasonKind.PUBLISHED]
    assert found.value == pytest.approx(20.0)


def test_each_schedule_has_its_own_loads() -> None:
    """Steps are compared with steps, a burst with a burst, and what loaded no server with nothing."""
    loads: dict[str, Schedule] = {"steps": Steps(((1, 2.0),)), "burst": Burst(100), "closed": Closed(50)}
    for schedule in ("steps", "burst", "closed", "none"):
        for name, load in loads.items():
            found = disagreements(entry(schedule=schedule), T4, load, [POST])
            assert (not found) is (name == schedule), (schedule, name)
    assert "of no server under load (hey -c 50)" in disagreements(entry(schedule="none"), T4, Closed(50), [POST])[0]


def test_a_peak_is_compared_with_the_best_step() -> None:
    """Of users in steps the best step counts, for a peak was printed, and the notes say that the steps were not."""
    slow, quick = window((0.010,) * 5), window((0.010,) * 50)
    steps = Steps(((1, 1.0), (20, 1.0)))
    run = Run("", Listener(), [session(start(slow, slow, quick, quick))], T4, steps)
    found = judge_published(measured(run, steps), THROUGHPUT, entry(schedule="steps"), tolerance=0.05)
    assert found.value == pytest.approx(100.0)
    assert any("best step is compared with a peak" in reason for reason in said(found.reasons))


def kserve(
    shapes: Sequence[object], *, binary: bytes = b"", header: str = "Inference-Header-Content-Length"
) -> Request:
    """An inference whose inputs have these shapes."""
    text = json.dumps({"inputs": [{"name": "x", "shape": shape} for shape in shapes]}).encode()
    return Request("POST", "/v2/models/m/versions/1/infer", text + binary, {header: str(len(text))} if binary else {})


@pytest.mark.parametrize(
    ("request_", "items"),
    [
        (kserve([[16, 3]]), 16),
        (kserve([[16, 3], [16]], binary=b"\xff\x00"), 16),
        (kserve([[16]], binary=b"{}", header="inference-header-content-length"), 16),
        *((kserve(json.loads(shapes)), None) for shapes in ("[[16], [8]]", "[]", "[[]]", '[["16"]]', "[3]")),
        *((Request("POST", "/v2/models/m/infer", body), None) for body in (b"no json", b'{"inputs": 5}')),
        (Request("POST", "/v2/models/m/infer", b"{}", {"Inference-Header-Content-Length": "x"}), None),
        (Request("POST", "/predict", b'{"inputs": [{"shape": [16]}]}'), None),
    ],
)
def test_items_are_read_off_a_request(request_: Request, items: int | None) -> None:
    """Of KServe v2 the first dimension that all inputs share; what does not say so is not guessed."""
    assert items_of(request_) == items


@pytest.mark.parametrize(
    ("batch", "sent", "alike"),
    [
        (16, [kserve([[16]])], True),
        (16, [kserve([[16]]), kserve([[16]])], True),
        (16, [kserve([[16]]), kserve([[8]])], False),
        (16, [kserve([[1]])], False),
        (16, [POST], False),
        (1, [POST], True),
        (1, [POST, kserve([[1]])], False),
        (None, [kserve([[7]])], True),
    ],
)
def test_units_agree_only_for_requests_alike(batch: int | None, sent: list[Request], alike: bool) -> None:  # noqa: FBT001 -- a parameter
    """Requests a second are not compared where a request is something else."""
    keys = {"concurrency": 50} if batch is None else {"concurrency": 50, "batch": batch}
    assert (disagreements(entry(keys=keys), T4, Closed(50), sent) == []) is alike


def test_it_is_shown_like_others() -> None:
    """The table says what it was compared with, and the explanation has provenance and bias after its headline."""
    found = judged(printed(40))
    assert "published 40.0/s" in table([result_of("test_x.py::test_a", found)], width=160, color=False)
    lines = explain(found, {}, "")
    assert lines[0] == "REGRESSED: throughput is 20.0/s, published 40.0/s: -50.0 % (tolerance 5 %)"
    assert lines[1].startswith("published: someone/bench results/bert.md, line 79")
    assert "bias: the card was warm" in lines


def test_the_suite_is_the_tests_folder(tmp_path: Path) -> None:
    """``suites/shop/...`` is ``shop``, however deep; another has to be named, and one that there is not is a mistake.

    A folder without any, as one to record into, has nothing for anyone.
    """
    path = tmp_path / "T4" / "published" / "shop.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(published_file(record())))
    for suite, file in ((None, "suites/shop/test_a.py"), (None, "suites/shop/deep/test_a.py"), ("shop", "test_a.py")):
        assert isinstance(find_published(tmp_path, "T4", suite, Path(file), {}), Published)
    for file in ("tests/shop/test_a.py", "suites/test_a.py", "/elsewhere/suites/shop/test_a.py"):
        with pytest.raises(UsageProblem, match=r"published\(suite='distilbert', ...\)"):
            suite_of(Path(file))
    with pytest.raises(UsageProblem, match="there are: shop"):
        find_published(tmp_path, "T4", "shops", Path("x"), {})
    found = find_published(tmp_path / "empty", "T4", "shop", Path("x"), {"any": 1})
    assert isinstance(found, NothingPublished)
    assert "has none at all" in found.reason
