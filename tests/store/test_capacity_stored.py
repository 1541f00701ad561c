"""Searches in files: read back as they were written, refused where they do not fit themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.errors import BaselineUnusable
from pytest_gpuserve.measure.capacity import Objective, Probe, ProbeOutcome, Search
from pytest_gpuserve.measure.objectives import Objectives
from pytest_gpuserve.measure.rounds import ARMS, ArmResult
from pytest_gpuserve.report.exports import loads_of
from pytest_gpuserve.report.html import document as page
from pytest_gpuserve.report.result_json import document
from pytest_gpuserve.report.results import SessionResult
from pytest_gpuserve.store import baseline
from pytest_gpuserve.store.schema import SearchRecord, search_of, search_record
from pytest_gpuserve.store.sequence import RoundRecord, round_of, round_record
from tests.fakes.scripted_pairing import round_of as scripted_round
from tests.support.builders import entry, result_of, session, start

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.measure.window import Session

P99 = Objective(0.99, 0.050)
SEARCH = Search(
    P99,
    (
        Probe(750.0, ProbeOutcome.MET, 1.2, 900, 0, 530.2, 0.0312),
        Probe(1125.0, ProbeOutcome.MISSED, 1.2, 1300, 400, 61.5, 0.412, reason="overloaded: by a test"),
        Probe(919.0, ProbeOutcome.UNDECIDED, 9.6, 8800, 90, 101.0, None, client="client late: by a test"),
    ),
)
NUMBERS = st.floats(1e-6, 1e9).map(lambda value: float(f"{value:.6g}"))
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


@st.composite
def probes(draw: st.DrawFn) -> Probe:
    """Any probe, in the digits of a file."""
    requests = draw(st.integers(0, 10**9))
    return Probe(
        rate=draw(NUMBERS),
        finding=draw(st.sampled_from(ProbeOutcome)),
        seconds=draw(NUMBERS),
        requests=requests,
        slow=draw(st.integers(0, requests)),
        effective=min(float(f"{draw(st.floats(0, 1)) * requests:.6g}"), float(requests)),
        latency=draw(NUMBERS | st.none()),
        reason=draw(TEXTS),
        client=draw(TEXTS),
        ttft=draw(NUMBERS | st.none()),
        tpot=draw(NUMBERS | st.none()),
    )


def searched(search: Search = SEARCH) -> Session:
    """A session of two searched starts."""
    one = replace(start(), search=search)
    return session(one, one)


SEVERAL = Objectives(ttft=0.2, tpot=0.03)


@given(found=st.lists(probes(), min_size=1, max_size=6), each=st.sampled_from([None, SEVERAL]))
def test_a_search_is_read_back_as_it_was(found: list[Probe], each: Objectives | None) -> None:
    """Through JSON, whatever its probes and their texts are; a latency alone is written as before there were others."""
    search = Search(replace(P99, each=each), tuple(found))
    data = msgspec.json.encode(search_record(search))
    assert (b"objectives" in data) == (each is not None)
    assert search_of(msgspec.json.decode(data, type=SearchRecord), "here") == search


@pytest.mark.parametrize("damage", [{"slow": 901}, {"effective": 901.0}])
def test_a_probe_that_does_not_fit_itself_is_refused(damage: dict[str, float]) -> None:
    """More slow, or more independent, than there are: the text names the probe."""
    record = search_record(SEARCH)
    assert record is not None
    damaged = msgspec.structs.replace(
        record, probes=[msgspec.structs.replace(record.probes[0], **damage), *record.probes[1:]]
    )
    with pytest.raises(ValueError, match=r"here\.probes\[0\] has 900 requests"):
        search_of(damaged, "here")


def test_a_baseline_has_the_probes_and_the_capacity(tmp_path: Path) -> None:
    """Its summary lists the capacity and the cold start alone, and finds an edited probe; a load's has no search."""
    path = tmp_path / "test_a.json"
    baseline.write(path, {"test_a": entry()})
    assert "search" not in path.read_text()
    baseline.write(path, {"test_a": entry(searched())})
    (stored,) = baseline.read(path).values()
    assert [each.search for each in stored.sessions[0].starts] == [SEARCH, SEARCH]
    summary = json.loads(path.read_text())["summary"]["test_a"]
    assert summary == {"capacity": pytest.approx(SEARCH.value, rel=1e-3), "cold_start": pytest.approx(1.5)}
    path.write_text(path.read_text().replace("919.0", "819.0"))
    with pytest.raises(BaselineUnusable, match="capacity disagrees with the samples"):
        baseline.read(path)


def test_a_round_is_read_back_with_its_searches() -> None:
    """What is remembered from run to run has them of both servers; an older record has none."""
    sides: dict[Arm, ArmResult] = {arm: ArmResult((1.0,), searches=(SEARCH,)) for arm in ARMS}
    measured = replace(scripted_round([0.0], by_turns=True), sides=sides)
    data = msgspec.json.encode(round_record(measured))
    found = round_of(msgspec.json.decode(data, type=RoundRecord), "here")
    assert {arm: side.searches for arm, side in found.sides.items()} == {"base": (SEARCH,), "candidate": (SEARCH,)}
    older = json.loads(data)
    for side in older["sides"].values():
        del side["searches"]
    assert round_of(msgspec.convert(older, type=RoundRecord), "here").sides["base"].searches == ()


def test_reports_tell_what_was_tried() -> None:
    """JSON and HTML have every rate with what it showed; latencies that belong to no load are nowhere told."""
    probes_of = tuple(replace(probe, latency=None, ttft=0.18, tpot=0.012) for probe in SEARCH.probes)
    other = searched(Search(replace(P99, each=SEVERAL), probes_of))
    tests = (result_of("test_x.py::test_a", sessions=(searched(),)), result_of("test_x.py::test_b", sessions=(other,)))
    result = SessionResult({"name": "cpu"}, {"id": "a"}, tests)
    run = json.loads(document(result))["tests"][0]["run"]
    (first, _) = run["searches"]
    assert first["capacity"] == SEARCH.value
    assert [probe["finding"] for probe in first["probes"]] == ["met", "missed", "undecided"]
    assert set(run["latency"].values()) == {None}
    (several, _) = json.loads(document(result))["tests"][1]["run"]["searches"]
    assert [each["objectives"] for each in (first, several)] == [None, {"ttft": 0.2, "tpot": 0.03}]
    written = page(result)
    for told in (
        "start 1: capacity ",
        "ttft 180 ms, tpot 12.0 ms",
        "where 99 % with ttft &lt;= 0.2 s, tpot &lt;= 0.03 s",
        "overloaded: by a test",
        "client late: by a test",
    ):
        assert told in written
    load, _ = loads_of(result)
    assert {metric.name for metric in load.known()} == {"capacity", "cold_start"}
