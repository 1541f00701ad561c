"""Baseline files: read back as written, readable by people, written whole or not at all, and refused if damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import BaselineUnusable
from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime
from pytest_gpuserve.measure.points import NotMeasured, mean_value, value_of_starts
from pytest_gpuserve.measure.window import GpuUse, Start, Window
from pytest_gpuserve.store.baseline import SUMMARY_TOLERANCE, read, render, stock_of, write
from pytest_gpuserve.store.schema import SCHEMA, Entry, StartRecord, sessions_of, start_of, start_record
from pytest_gpuserve.verdict.metric import METRICS, Metric
from tests.support.builders import entry, session, small_entries, start, streamed, window


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Path of a baseline file."""
    return tmp_path / "baselines" / "cpu" / "test_y.json"


SMALL = small_entries()
TEXT = render(SMALL)

SUMMARISED = {name for name, metric in METRICS.items() if not metric.on_request} | {"cold_start"}
"""Known facts of a load without a GPU."""


def entries_of(path: Path) -> dict[str, Entry]:
    """The entries that a file holds."""
    return {key: stored.entry for key, stored in read(path).items()}


def test_what_is_written_is_read_back(path: Path) -> None:
    """Entries and their sessions survive a file, and writing them again changes no byte of it."""
    entries = {"test_b": entry(session(), session(start(window(items=None, batches=None)), start())), **SMALL}
    write(path, entries)
    assert entries_of(path) == entries
    assert [len(stored.sessions) for stored in read(path).values()] == [1, 2]
    assert render(entries_of(path)).encode() == path.read_bytes()


def test_a_file_without_entries_is_removed(path: Path) -> None:
    """Removing the last entry removes the file; a second removal is fine, and a missing file has no entries."""
    write(path, SMALL)
    write(path, {})
    write(path, {})
    assert not path.exists()
    assert read(path) == {}


def test_the_file_reads_from_the_top() -> None:
    """The summary comes first with one metric a line, the starts after it one a line, all keys sorted."""
    lines = TEXT.splitlines()
    assert lines[:5] == ["{", ' "schema": 5,', ' "summary": {', '  "test_a[1]": {', '   "batching_ratio": 4.0,']
    assert [line.split('"')[1] for line in lines[4:11]] == sorted(SUMMARISED)
    assert sum('"requests": ' in line for line in lines) == 2
    plain = json.loads(TEXT)
    assert list(plain["entries"]["test_a[1]"]) == sorted(plain["entries"]["test_a[1]"])
    assert list(plain["entries"]["test_a[1]"]["sessions"][0]) == sorted(plain["entries"]["test_a[1]"]["sessions"][0])
    assert TEXT.endswith("}\n")
    one, other = entry(), entry(session(), session())
    assert render({"b": one, "a": other}) == render({"a": other, "b": one})


def test_what_the_gpus_did_is_in_the_summary(path: Path) -> None:
    """Known values of eight full GPUs are listed, and read back; unknown ones are absent instead of zero."""
    gpus = GpuUse(joules=4.0, memory_bytes=8 * 141e9)
    used = start(window(gpus=gpus))
    uncounted = start(window(items=None, batches=None))
    write(path, {"a": entry(session(used, used)), "b": entry(session(uncounted, uncounted))})
    text = path.read_text()
    assert read(path)["a"].sessions[0].windows[0].gpus == gpus
    summary = json.loads(text)["summary"]
    assert summary["a"].items() >= {"energy_per_inference": 0.4, "gpu_memory": 1.128e12}.items()
    assert "gpu_utilisation" not in text
    assert '"gpus": {"joules": 4.0, "memory_bytes": 1128000000000.0}' in text
    assert set(summary["b"]) == SUMMARISED - {"batching_ratio"}


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({"odd": msgspec.structs.replace(entry(), sessions=[])}, id="no session"),
        pytest.param({"odd": msgspec.structs.replace(entry(), commit="not a commit")}, id="commit"),
        pytest.param({"odd": entry(session(start(window(seconds=0.0)), start()))}, id="no time"),
        pytest.param({"odd": entry(session(*[start(window(seconds=0.0))] * 2))}, id="no time at all"),
        pytest.param({"odd": entry(session(start(cold_start_seconds=float("nan")), start()))}, id="NaN"),
        pytest.param({"odd": entry(session(start(cold_start_seconds=float("inf")), start()))}, id="infinity"),
        pytest.param({"odd": entry(session(start()))}, id="one start"),
        pytest.param({"test \ud800": entry()}, id="half of a surrogate pair in a name"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(path: Path, odd: dict[str, Entry]) -> None:
    """A mistake of ours shows before it has replaced a good file."""
    write(path, SMALL)
    with pytest.raises(BaselineUnusable, match="not written") as caught:
        write(path, {**SMALL, **odd})
    assert str(path) in str(caught.value)
    assert path.read_bytes() == TEXT.encode()


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace", "pathlib.Path.chmod"])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str, failure: BaseException
) -> None:
    """A failed write leaves the file unchanged, without a leftover beside it."""
    write(path, {"old": entry()})
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(step, fail)
    with pytest.raises(BaselineUnusable if isinstance(failure, OSError) else KeyboardInterrupt):
        write(path, SMALL)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """If the file cannot be written, the error names it and a remedy."""
    (tmp_path / "cpu").write_text("a file where a folder should be")
    with pytest.raises(BaselineUnusable, match="--baseline-dir=DIR") as caught:
        write(tmp_path / "cpu" / "test_y.json", SMALL)
    assert str(tmp_path / "cpu" / "test_y.json") in str(caught.value)


def test_entries_are_counted(tmp_path: Path) -> None:
    """The entries of all baselines below a folder are counted; files of another kind are not baselines."""
    assert stock_of(tmp_path / "nowhere") == (0, 0)
    write(tmp_path / "a.json", {"test_a": entry(), "test_b": entry()})
    (tmp_path / "x").mkdir()
    write(tmp_path / "x" / "b.json", {"test_c": entry()})
    (tmp_path / "shop.json").write_text('{"schema": 1, "entries": []}')
    assert stock_of(tmp_path) == (3, 0)


@pytest.mark.parametrize("damage", ["", "{", "[]", "\xff", '{"summary": {}, "entries": {"a": {}}}', "[" * 5000])
def test_what_cannot_be_read_is_said(tmp_path: Path, damage: str) -> None:
    """It is neither ignored nor the end of the run: the test that needs it fails with the reason."""
    write(tmp_path / "a.json", {"test_a": entry()})
    (tmp_path / "b.json").write_bytes(damage.encode("latin-1"))
    assert stock_of(tmp_path) == (1, 1)


# -- starts

OF_GPUS = window(gpus=GpuUse(joules=12.5, memory_bytes=1.2e9, utilisation=0.8, sm_clock_mhz=1350.0))
SLOWER = window((0.01, 0.02, 0.03), seconds=0.7)


@pytest.mark.parametrize(
    "windows",
    [
        (window(), SLOWER),
        (OF_GPUS, window(seconds=1.0, gpus=GpuUse(3.0, 1.3e9, 0.1, 900.0))),
        (OF_GPUS, SLOWER),
        (streamed(window(), good=3), streamed(SLOWER, ttft=0.01, tpot=0.002, tokens=5, good=2)),
        (streamed(window(), usage=False), streamed(SLOWER)),
        (window(), window((), items=None, batches=None)),
    ],
)
def test_a_start_has_the_numbers_that_it_was_measured_with(windows: tuple[Window, ...]) -> None:
    """Every metric equals that of all windows together, to six digits; a second write changes nothing."""

    def value(metric: Metric, start: Start) -> float:
        try:
            return value_of_starts(metric, [start])
        except NotMeasured:
            return -1.0

    measured = start(*windows)
    record = msgspec.json.decode(msgspec.json.encode(start_record(measured)), type=StartRecord)
    back = start_of(record, {}, "")
    for metric in METRICS.values():
        assert value(metric, back) == pytest.approx(value(metric, measured), rel=1e-5), metric.name
    assert start_record(back) == record


def test_how_a_server_was_set_up_is_read_back() -> None:
    """Each start has the settings of its server."""
    (read,) = sessions_of(msgspec.structs.replace(entry(), settings={"max_batch": "8"}))
    assert [start.settings for start in read.starts] == [{"max_batch": ServerSetting("8")}] * 2


def test_what_is_not_known_is_left_out() -> None:
    """A plain start is short; what is known has its name and unit, to six digits."""
    plain = msgspec.to_builtins(start_record(start(window(seconds=0.50123456789, items=None, batches=None))))
    assert plain == {
        "cold_start_seconds": 1.5,
        "client_cpu_seconds": 0.01,
        "latency": "0.1 0.01 16126+10",
        "requests": 10,
        "seconds": 0.501235,
    }
    more = window(
        seconds=0.50123456789,
        counters=Counters(
            0, 0, stages={"compute": StageTime(0.123456789, 40)}, counts_batches=False, tallies={"prompt_tokens": 200}
        ),
        gpus=GpuUse(joules=12.5),
    )
    assert msgspec.to_builtins(start_record(start(more))) == {
        **plain,
        "stages": {"compute": (0.123457, 40)},
        "gpus": {"joules": 12.5},
        "tallies": {"prompt_tokens": 200},
    }


@pytest.mark.parametrize(
    ("field", "changes", "words"),
    [
        ("gpus", {"gpus": {"watts": 1.0}}, "joules"),
        ("latency", {"requests": 11}, " holds 10 latencies, .* is 11$"),
        ("latency: ", {"latency": "5+10"}, "SUM MAX"),
        ("itl: ", {"itl": "5+1"}, ""),
        ("ttft", {"ttft": "1 1 5+3"}, " holds 3 times, .* is 10$"),
        ("tpot", {"tpot": "1 1 5+4", "with_usage": 3}, ""),
        ("tpot", {"with_usage": 11}, ""),
        ("good", {"good": 9, "unjudged": 2}, ""),
    ],
)
def test_a_damaged_start_is_refused(field: str, changes: dict[str, Any], words: str) -> None:
    """A field that cannot be read or does not fit is named."""
    made = entry(session(start(streamed(window())), start(streamed(window()))))
    made.sessions[0].starts[1] = msgspec.structs.replace(made.sessions[0].starts[1], **changes)
    with pytest.raises(ValueError, match=rf"^sessions\[0\]\.starts\[1\]\.{field}.*{words}"):
        sessions_of(made)


# -- damage

DEEP = b"[" * 500_000
"""It exhausts a reader that follows it."""


def put(path: Path, content: bytes | str) -> Path:
    """Write a file with any content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path: Path, content: bytes | str) -> str:
    """Text of a refusal, which always names the file and its restoration."""
    with pytest.raises(BaselineUnusable) as caught:
        read(put(path, content))
    assert str(path) in caught.value.summary
    assert caught.value.remedies
    return str(caught.value)


# The file is written anew for every example.
DAMAGE = settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
BYTES = TEXT.encode()
FIRST = "entries['test_a[1]'].sessions[0]"
"""How a message names the only session of ``SMALL``."""


def changed(change: Callable[[Any], object]) -> str:
    """The small file with a change in its plain data."""
    plain = json.loads(TEXT)
    change(plain)
    return json.dumps(plain)


def sample(plain: Any) -> Any:  # noqa: ANN401 -- plain JSON
    """The first session of the small file."""
    return plain["entries"]["test_a[1]"]["sessions"][0]


def test_a_folder_in_the_place_of_a_file_is_named(path: Path) -> None:
    """An error of the system makes the baseline unusable, not absent."""
    path.mkdir(parents=True)
    with pytest.raises(BaselineUnusable, match="cannot be read") as caught:
        read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"not json", b"[]", b"null", b"\xff\xfe", b"{}", DEEP, b'{"schema": 1, "entries": {"a": ' + DEEP],
    ids=range(9),
)
def test_what_is_no_baseline_at_all_is_refused(path: Path, content: bytes) -> None:
    """Any other content is refused in words."""
    refusal(path, content)


def test_a_merge_conflict_is_found_by_its_line(path: Path) -> None:
    """The message tells the line at which the file stops to be JSON."""
    lines = TEXT.splitlines()
    lines.insert(20, "<<<<<<< HEAD")
    assert "line 21 " in refusal(path, "\n".join(lines))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda plain: plain.pop("schema"), "schema"),
        (lambda plain: plain.update(extra=1), "extra"),
        (lambda plain: plain.update(entries=[]), "at entries"),
        (lambda plain: plain["summary"]["test_a[1]"].update(throughput=-13), "at summary['test_a[1]'].throughput"),
        (lambda plain: plain["entries"]["test_a[1]"].update(commit="0123456\n"), "at entries['test_a[1]'].commit"),
        (lambda plain: plain["entries"]["test_a[1]"].update(sessions=[]), "at entries['test_a[1]'].sessions"),
        (lambda plain: plain["entries"]["test_a[1]"].pop("workload"), "`workload` - at"),
        (lambda plain: sample(plain).update(at="2025-01-02T03:04:05+02:00"), f"at {FIRST}.at"),
        (lambda plain: plain["entries"]["test_a[1]"]["host"].update(hostname="secret"), "`hostname`"),
        (lambda plain: sample(plain)["starts"].pop(), f"at {FIRST}.starts"),
        # It is less than a nanosecond, in which a window has no length.
        (lambda plain: sample(plain)["starts"][0].update(seconds=4e-10), f"at {FIRST}.starts[0].seconds"),
    ],
)
def test_a_wrong_field_is_named(path: Path, change: Callable[[Any], object], named: str) -> None:
    """Wrong types, missing and unknown fields and too few starts are refused by the field's path."""
    text = refusal(path, changed(change))
    assert named.removesuffix(" - at") in text.replace("` - at", "`")


FIELDS = [
    *[("seconds", value) for value in (-0.5, 0, "0.5", None)],
    *[("requests", value) for value in (-1, 10.5, 10**400, 11)],
    *[("items", value) for value in (-1, 10**400)],
    *[("batches", value) for value in ("10", True)],
    *[("latency", value) for value in (5, "gibberish", "")],
    ("client_cpu_seconds", -0.1),
    ("stages", {"compute": [1]}),
    ("gpus", {"joules": -1}),
    ("tallies", {"a": 1.5}),
]


@pytest.mark.parametrize(("field", "value"), FIELDS)
def test_a_wrong_start_is_named(path: Path, field: str, value: object) -> None:
    """Each field of a start is checked, and the message names the start."""
    text = refusal(path, changed(lambda plain: sample(plain)["starts"][1].update({field: value})))
    assert f"{FIRST}.starts[1].{'latency' if value == 11 else field}" in text


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1", "1e13"])
@pytest.mark.parametrize("field", ["seconds", "client_cpu_seconds", "cold_start_seconds"])
def test_no_time_is_odd(path: Path, field: str, number: str) -> None:
    """NaN, infinity, negative and absurd times are refused wherever one stands."""
    plain = json.loads(TEXT)
    sample(plain)["starts"][0][field] = "HERE"
    text = refusal(path, json.dumps(plain).replace('"HERE"', number))
    if number not in {"NaN", "Infinity", "-Infinity"}:
        assert f"{FIRST}.starts[0]." in text
        assert field in text


@pytest.mark.parametrize(
    ("schema", "help_text"), [(SCHEMA + 1, "pip install --upgrade"), (10**30, "upgrade"), (0, "record")]
)
def test_another_schema_says_what_to_do(path: Path, schema: int, help_text: str) -> None:
    """A newer file needs a newer version, an older one a new recording, with any content."""
    text = refusal(path, json.dumps({"schema": schema, "unheard": "of"}))
    assert f"schema {schema}; this version reads schema {SCHEMA}" in text
    assert help_text in text


@pytest.mark.parametrize("metric", [*(name for name, metric in METRICS.items() if not metric.on_request), "cold_start"])
def test_a_summary_edited_by_hand_is_found(path: Path, metric: str) -> None:
    """A number at the top that its samples do not bear out is refused by name."""
    for factor in (0.98, 1.002, 10):
        plain = json.loads(TEXT)
        plain["summary"]["test_a[1]"][metric] *= factor
        text = refusal(path, json.dumps(plain))
        assert f"summary['test_a[1]'].{metric} disagrees" in text
        assert "recorded, never edited" in text


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: plain["summary"].pop("test_a[1]"),
        lambda plain: plain["summary"].update(test_b={}),
        lambda plain: plain["entries"].pop("test_a[1]"),
        lambda plain: plain["summary"]["test_a[1]"].pop("throughput"),
        lambda plain: plain["summary"]["test_a[1]"].update(kindness=3.0),
    ],
)
def test_summary_and_entries_belong_together(path: Path, change: Callable[[Any], object]) -> None:
    """A summary or an entry that is left out, renamed or added alone is refused."""
    assert "summary" in refusal(path, changed(change))


@DAMAGE
@given(position=st.integers(0, len(BYTES.rstrip()) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_changes_no_number_that_counts(path: Path, position: int, byte: int) -> None:
    """Cut anywhere it is refused; with one damaged byte too, or every metric is what it was to the summary's precision.

    What can remain is a text (workload, host, software), on which nothing is ever judged a pass: another workload is
    MISSING and another host is judged as one.
    """
    refusal(path, BYTES[:position])
    damaged = bytearray(BYTES)
    damaged[position] = byte
    put(path, bytes(damaged))
    try:
        found = read(path)
    except BaselineUnusable:
        return
    assert list(found) == list(SMALL)
    said = json.loads(TEXT)["summary"]["test_a[1]"]
    values = {name: mean_value(METRICS[name], found["test_a[1]"].sessions) for name in said}
    assert values == {name: pytest.approx(value, rel=2 * SUMMARY_TOLERANCE) for name, value in said.items()}
