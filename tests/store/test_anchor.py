"""Anchors in baseline files: read back as written, a line each, refused when damaged, not more than are needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import BaselineUnusable
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.store.anchor import MOST_HOSTS, Anchored, check, checksummed, find, is_of, is_since, replaced
from pytest_gpuserve.store.baseline import read, render, write
from pytest_gpuserve.store.schema import AnchoredRecord, AnchorRecord, Entry, MoveRecord
from tests.store.test_damage import edited, put, refusal
from tests.support.builders import COMMIT, OCCASION, OTHER_COMMIT, entry, here, session, start, window

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.store.schema import How

ROOT = Path(__file__).parents[2]
BEFORE = "2025-01-01T03:00:00+00:00"
LATER = "2025-02-01T03:00:00+00:00"

# The file is written anew for every example.
DAMAGE = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


def line(metric: str = "throughput", value: float = 20.0, *, how: How = "recorded", reason: str = "") -> AnchoredRecord:
    """A metric's line, of three sessions of two occasions."""
    return AnchoredRecord(metric, value, METRICS[metric].unit, 3, 2, how, "", 0.012, reason)


def anchor(*lines: AnchoredRecord, host: str = "host-a", at: str = BEFORE, commit: str | None = COMMIT) -> AnchorRecord:
    """What a recording on a host accepted, not checksummed yet."""
    where = here(host, commit=commit)
    return AnchorRecord(
        at=at,
        commit=commit,
        clean=True,
        code=commit,
        host=where.host_record(),
        device=where.device_record(),
        software={"python": "3.11.9"},
        metrics=[*lines] or [line()],
    )


def move(metric: str = "throughput", reason: str = "a larger model") -> MoveRecord:
    """A move for the worse."""
    return MoveRecord(BEFORE, COMMIT, "host-a", "loosened", metric, 20.0, 24.5, OTHER_COMMIT, reason)


def anchored() -> Entry:
    """A small entry of another commit than that of its anchors, two of which are in one recording."""
    made = entry(session(start(window()), start(window())), commit=OTHER_COMMIT)
    lines = (line("throughput", how="loosened", reason="a larger model"), line("latency.p99", 0.01))
    return msgspec.structs.replace(
        made, anchors=[checksummed(anchor(*lines)), checksummed(anchor(host="host-b", at=LATER))], moves=[move()]
    )


TEXT = render({"test_a[1]": anchored()})
BYTES = TEXT.encode()
KEY = "entries['test_a[1]']"


def changed(change: Callable[[Any], object]) -> str:
    """The file with a change in its entry's plain data."""
    return edited(TEXT, lambda plain: change(plain["entries"]["test_a[1]"]))


def test_an_anchor_is_a_line(path: Path) -> None:
    """A diff shows one metric a line, in the order of names, and a move in one; a file that was read is not changed."""
    write(path, {"test_a[1]": anchored()})
    assert read(path)["test_a[1]"].entry == anchored()
    assert path.read_bytes() == BYTES
    lines = [each.strip().rstrip(",") for each in TEXT.splitlines()]
    metrics = [json.loads(each) for each in lines if each.startswith("{") and '"metric"' in each]
    assert [each["metric"] for each in metrics] == ["latency.p99", "throughput", "throughput", "throughput"]
    assert [each.get("reason") for each in metrics] == [None, "a larger model", None, "a larger model"]
    assert "old" in metrics[-1]
    assert [list(each) for each in metrics] == [sorted(each) for each in metrics]
    assert {"anchors", "moves"}.isdisjoint(json.loads(render({"a": entry()}))["entries"]["a"])


@pytest.mark.parametrize(
    "file",
    [each for each in sorted((ROOT / "baselines").glob("*/*/*.json")) if each.parent.name != "published"],
    ids=lambda file: file.stem,
)
def test_committed_baselines_are_read_unchanged(file: Path) -> None:
    """What this project has recorded so far is read, and would be written byte for byte as it is.

    But for the number of its schema: a file of schema 1 lacks nothing but yardsticks.
    """
    entries = {key: stored.entry for key, stored in read(file).items()}
    assert entries
    as_now = file.read_bytes().replace(b'"schema": 1,', b'"schema": 2,', 1)
    assert render(entries).encode() == as_now


RECORDS = st.builds(
    AnchoredRecord,
    metric=st.sampled_from(sorted(METRICS)),
    value=st.floats(1e-6, 1e12, allow_nan=False),
    unit=st.just(""),
    sessions=st.integers(2, 100),
    occasions=st.integers(1, 2),
    how=st.sampled_from(["recorded", "tightened", "loosened"]),
    seal=st.just(""),
    sd=st.floats(0, 1),
    reason=st.text(st.characters(exclude_categories=["Cs"])),
)


@settings(max_examples=60)
@given(lines=st.lists(RECORDS, min_size=1, max_size=5, unique_by=lambda record: record.metric))
def test_any_anchor_survives_a_file(lines: list[AnchoredRecord]) -> None:
    """Whatever the numbers and the words of the reason."""
    with_units = [msgspec.structs.replace(each, unit=METRICS[each.metric].unit) for each in lines]
    made = msgspec.structs.replace(entry(), anchors=[checksummed(anchor(*with_units))])
    back = msgspec.json.decode(json.dumps(json.loads(render({"a": made}))["entries"]["a"]), type=Entry)
    assert back == made
    check(back.anchors, back.moves)


LINE = f"{KEY}.anchors[0].metrics[1]"


def first(plain: Any) -> Any:  # noqa: ANN401 -- plain JSON
    """The line of the throughput's anchor."""
    return plain["anchors"][0]["metrics"][1]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda plain: first(plain).update(value=19.0), f"{LINE}.seal"),
        (lambda plain: first(plain).update(sd=0.2), f"{LINE}.seal"),
        (lambda plain: first(plain).update(sessions=4), f"{LINE}.seal"),
        (lambda plain: first(plain).update(reason="another"), f"{LINE}.seal"),
        (lambda plain: first(plain).update(how="tightened"), f"{LINE}.seal"),
        (lambda plain: first(plain).update(seal="0" * 12), f"{LINE}.seal"),
        (lambda plain: plain["anchors"][0].update(commit=OTHER_COMMIT), f"{KEY}.anchors[0].metrics[0].seal"),
        (lambda plain: plain["anchors"][0]["host"].update(id="host-c"), f"{KEY}.anchors[0].metrics[0].seal"),
        (lambda plain: plain["anchors"][0]["software"].update(torch="2"), f"{KEY}.anchors[0].metrics[0].seal"),
        (lambda plain: first(plain).update(value=0), f"{LINE}.value"),
        (lambda plain: first(plain).update(value="20"), f"{LINE}.value"),
        (lambda plain: first(plain).pop("sd"), f"{LINE}.sd"),
        (lambda plain: first(plain).update(sessions=0), f"{LINE}.sessions"),
        (lambda plain: first(plain).update(occasions=4), f"{LINE}.occasions"),
        (lambda plain: first(plain).update(metric="kindness"), f"{LINE}.metric"),
        (lambda plain: first(plain).update(unit="s"), f"{LINE}.unit"),
        (lambda plain: first(plain).update(how="guessed"), f"{LINE}.how"),
        (lambda plain: first(plain).update(extra=1), "extra"),
        (lambda plain: plain["anchors"].append(plain["anchors"][0]), "once more of the host 'host-a'"),
        (lambda plain: plain["anchors"][0].update(metrics=[]), f"{KEY}.anchors[0].metrics"),
        (lambda plain: plain["anchors"][0].update(at="yesterday"), f"{KEY}.anchors[0].at"),
        (lambda plain: plain["anchors"][0].update(commit="HEAD"), f"{KEY}.anchors[0].commit"),
        (lambda plain: plain["anchors"][0].pop("host"), "`host`"),
        (lambda plain: plain.update(anchors={}), f"{KEY}.anchors"),
        (lambda plain: plain["moves"][0].update(new=-1), f"{KEY}.moves[0].new"),
        (lambda plain: plain["moves"][0].update(metric="kindness"), f"{KEY}.moves[0].metric"),
    ],
)
def test_a_damaged_anchor_is_named(path: Path, change: Callable[[Any], object], named: str) -> None:
    """Edits by hand, wrong types, unknown metrics and what cannot be are refused by file and field."""
    assert named in refusal(path, changed(change)).replace("` - at", "`")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1", "1e16"])
@pytest.mark.parametrize("field", ["value", "sd"])
def test_no_number_of_an_anchor_is_odd(path: Path, field: str, number: str) -> None:
    """NaN, infinity, negative and absurd numbers are refused wherever one stands."""
    refusal(path, changed(lambda plain: first(plain).update({field: "HERE"})).replace('"HERE"', number))


@DAMAGE
@given(position=st.integers(0, len(BYTES) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_moves_no_anchor(path: Path, position: int, byte: int) -> None:
    """One damaged byte anywhere: refused, or every anchor of every host is what it was."""
    damaged = bytearray(BYTES)
    damaged[position] = byte
    put(path, bytes(damaged))
    try:
        found = read(path)
    except BaselineUnusable:
        return
    assert [stored.entry.anchors for stored in found.values()] == [anchored().anchors]


def test_a_metric_has_one_anchor_on_a_host() -> None:
    """A new one takes the place of the old one there, and leaves those of other metrics and of other hosts."""
    old = [checksummed(anchor(line(), line("latency.p50", 0.01))), checksummed(anchor(host="host-b"))]
    kept = replaced(old, [anchor(line(value=30.0), at=LATER, commit=OTHER_COMMIT)], "host-a")
    check(kept, [])
    throughput, p50 = find(kept, "host-a", "throughput"), find(kept, "host-a", "latency.p50")
    assert throughput is not None
    assert p50 is not None
    assert (throughput.line.value, throughput.of.commit, p50.of.commit) == (30.0, OTHER_COMMIT, COMMIT)
    assert find(kept, "host-b", "throughput") is not None
    assert find(kept, "host-c", "throughput") is None
    # What one recording accepted is of one anchor, in the order of the metrics' names.
    at_once = replaced([], [anchor(line()), anchor(line("latency.p50", 0.01))], "host-a")
    assert [[each.metric for each in one.metrics] for one in at_once] == [["latency.p50", "throughput"]]


def test_only_so_many_hosts_are_kept() -> None:
    """Machines that come once must not fill a file for ever; the host that recorded last is never the one to go."""
    kept: list[AnchorRecord] = []
    for number in range(10):
        kept = replaced(kept, [anchor(host=f"host-{number}")], f"host-{number}")
    assert [each.host.id for each in kept] == [f"host-{number}" for number in range(10 - MOST_HOSTS, 10)]
    again = replaced(replaced(kept, [], "host-6"), [anchor(host="new")], "new")
    assert [each.host.id for each in again] == ["host-8", "host-9", "host-6", "new"]


def test_nothing_comes_between_a_build_and_itself() -> None:
    """An anchor of the entry's own committed code, packages and kind of card is no other build; all else is."""
    same, change = anchor(), msgspec.structs.replace
    made = entry(commit=COMMIT)
    assert is_of(same, made)
    assert is_of(change(same, device=change(same.device, card_id="0" * 12, pci_bus_id="00000000:3B:00.0")), made)
    for other in (
        anchor(commit=OTHER_COMMIT),
        anchor(commit=None),
        change(same, clean=False),
        change(same, software={"python": "3.12"}),
        change(same, device=change(same.device, driver="560")),
    ):
        assert not is_of(other, made)
        assert is_of(change(other, at=OCCASION), made)


def test_something_came_since_unless_its_own_sessions_are_all_there_is() -> None:
    """More sessions, fewer, and none of its own: what they are now is not what the anchor says, though the code is."""
    one = entry(session(start(window()), start(window())), commit=COMMIT)
    (record,) = one.sessions
    alone = msgspec.structs.replace(line(), sessions=1, occasions=1, sd=None)
    made = Anchored(alone, anchor(alone, at=OCCASION))
    assert not is_since(made, one)
    assert is_since(made, msgspec.structs.replace(one, sessions=[record, record]))
    assert is_since(Anchored(line(), made.of), one)
    assert is_since(made, msgspec.structs.replace(one, sessions=[msgspec.structs.replace(record, occasion=LATER)]))
    elsewhere = msgspec.structs.replace(record, host=msgspec.structs.replace(record.host, id="host-b"))
    assert not is_since(made, msgspec.structs.replace(one, sessions=[elsewhere, record]))
