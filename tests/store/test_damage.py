"""Damaged baseline files are refused with the names of the file and the field, for any damage."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import BaselineUnusable
from pytest_gpuserve.measure.points import mean_value
from pytest_gpuserve.store.baseline import SUMMARY_TOLERANCE, read, render
from pytest_gpuserve.store.schema import SCHEMA
from pytest_gpuserve.verdict.metric import METRICS
from tests.support.builders import small_entries

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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
SMALL = small_entries()
TEXT = render(SMALL)
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
