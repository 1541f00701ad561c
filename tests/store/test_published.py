"""Files of published numbers: what is read of them, what is refused, and how an entry is chosen."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.errors import BaselineUnusable, UsageProblem
from pytest_gpuserve.store.published import (
    UNNAMED,
    NothingPublished,
    PublishedEntry,
    read_file,
    read_published,
    select,
    suites,
)
from tests.support.published_files import published_file, record

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, data: object, *, device: str = "T4", suite: str = "shop") -> Path:
    """Write a file of a device."""
    path = folder / device / "published" / f"{suite}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def refusal(folder: Path, data: object) -> str:
    """Why a file is not usable; the text names it."""
    path = written(folder, data)
    with pytest.raises(BaselineUnusable) as caught:
        read_published(folder, "shop")
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_an_entry_is_read_with_its_circumstances(tmp_path: Path) -> None:
    """The device is the folder; what was not printed is not there."""
    written(tmp_path, published_file(record()))
    (entry,) = read_published(tmp_path, "shop")
    assert (entry.device, entry.gpu, entry.document.path) == ("T4", "NVIDIA T4", "results/bert.md")
    assert entry.record.values == {"throughput": 2000.0, "latency.p50": 0.02}
    assert "latency.p99" not in entry.record.values
    assert entry.provenance == "someone/bench results/bert.md at 7569dd7, line 79; hey: hey -c 50"


def test_files_of_all_devices_are_read_in_their_order(tmp_path: Path) -> None:
    """Baselines beside them, and other suites, are not; nor is a suite a pattern or a path."""
    for device in ("T4", "A30"):
        written(tmp_path, published_file(record()), device=device)
    written(tmp_path, published_file(record()), suite="other")
    (tmp_path / "T4" / "shop").mkdir()
    (tmp_path / "T4" / "shop" / "test_shop.json").write_text("{")
    assert [entry.device for entry in read_published(tmp_path, "shop")] == ["A30", "T4"]
    assert suites(tmp_path) == ["other", "shop"]
    for suite in ("*", "[a-z]*", "../published/shop", "", "published/shop"):
        assert read_published(tmp_path, suite) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"values": {"throughput": 0, "latency.p50": 0.02}}, "at entries[0].values[...]"),
        ({"values": {"throughput": None}}, "at entries[0].values[...]"),
        ({"values": {"throughput": 2000.0, "latency.p99": -1}}, "at entries[0].values[...]"),
        ({"schedule": "open"}, "at entries[0].schedule"),
        ({"line": 0}, "at entries[0].line"),
        ({"tool": ""}, "at entries[0].tool"),
        ({"bias": [""]}, "at entries[0].bias[0]"),
        ({"keys": {"concurrency": None}}, "at entries[0].keys[...]"),
        ({"keys": {"system": "mosec"}}, "a closed loop has a whole concurrency"),
        ({"keys": {"concurrency": 1.5}}, "a closed loop has a whole concurrency"),
        ({"printed": None}, "a throughput is in values and in printed"),
        ({"values": {"latency.p50": 0.02}}, "a throughput is in values and in printed"),
        ({"p99": 0.1}, "unknown field `p99`"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    """File and field are told; null is no way to say that a number was not printed."""
    assert expected in refusal(tmp_path, published_file({**record(), **changes}))


def test_two_entries_that_nothing_tells_apart_are_refused(tmp_path: Path) -> None:
    """No keyword could choose between them."""
    assert "the same as entries[0].keys" in refusal(tmp_path, published_file(record(), {**record(), "line": 80}))


def test_another_schema_is_told(tmp_path: Path) -> None:
    """A newer file asks for a newer version."""
    for schema in (0, 2):
        text = refusal(tmp_path, {**published_file(record()), "schema": schema})
        assert f"schema {schema}; this version reads schema 1" in text
        assert ("pip install --upgrade" in text) is (schema > 1)


@given(st.sampled_from([b"", b"{", b"[]", b"null", b'{"schema": 1}', b'{"schema": 1, "entries": []}']) | st.binary())
def test_what_is_no_such_file_is_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """An empty, cut or foreign file is never an empty set of numbers, and no content leads to another error."""
    path = tmp_path_factory.getbasetemp() / "T4" / "published" / "any.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    with pytest.raises(BaselineUnusable, match="is not usable"):
        read_file(path)


@pytest.fixture
def entries(tmp_path: Path) -> list[PublishedEntry]:
    """Three entries on a T4, one of which has no workers, one on an A30, and one of a card that nobody named."""

    def of(**keys: object) -> dict[str, Any]:
        return {**record(), "keys": {"concurrency": 50, **keys}}

    written(
        tmp_path,
        published_file(
            of(system="mosec", workers=1), of(system="mosec", workers=2, concurrency=80), of(system="pytriton")
        ),
    )
    written(tmp_path, published_file(of(system="mosec", workers=4)), device="A30")
    written(tmp_path, published_file(of(system="worker", workers=4)), device=UNNAMED)
    return read_published(tmp_path, "shop")


def test_keywords_narrow_down_to_one(entries: list[PublishedEntry]) -> None:
    """An entry without a keyword is none that has it; numbers are equal as numbers; what is alone needs no keyword."""
    alone: list[dict[str, object]] = [{"system": "pytriton"}, {"workers": 2}, {"concurrency": 80.0}]
    for wanted in (*alone, {"system": "mosec", "concurrency": 50}):
        found = select(entries, "T4", "shop", wanted)
        assert isinstance(found, PublishedEntry)
        assert found.device == "T4"
        assert all(found.record.keys[name] == value for name, value in wanted.items())
    assert isinstance(select(entries, "A30", "shop", {}), PublishedEntry)


@pytest.mark.parametrize(
    ("device", "wanted", "reason"),
    [
        ("cpu", {}, "cpu in shop; there are: A30, T4, unnamed"),
        ("cpu", {"system": "mosec"}, "cpu in shop with system='mosec'; there are: A30, T4"),
        ("T4", {"concurrency": 3}, "T4 in shop with concurrency=3; nor for any other device"),
        ("T4", {"workers": 4}, "T4 in shop with workers=4; there are: A30, unnamed"),
        (UNNAMED, {"system": "worker"}, "unnamed in shop with system='worker'; there are: unnamed"),
    ],
)
def test_a_device_without_such_an_entry_has_none(
    entries: list[PublishedEntry], device: str, wanted: dict[str, object], reason: str
) -> None:
    """The reason says which devices have one; what nobody named is chosen for no device."""
    assert select(entries, device, "shop", wanted) == NothingPublished(f"no number was published for {reason}")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"threads": 1}, "there are: concurrency, system, workers"),
        ({"system": "mosecc"}, "there are: 'mosec', 'pytriton', 'worker'"),
        ({"workers": True}, "a text or a number, not True"),
        ({"workers": None}, "a text or a number, not None"),
    ],
)
def test_a_slip_of_the_pen_is_told_on_every_device(
    entries: list[PublishedEntry], wanted: dict[str, object], expected: str
) -> None:
    """A wrong keyword does not hide behind the skip of a device that has no numbers."""
    for device in ("T4", "cpu"):
        with pytest.raises(UsageProblem, match=re.escape(expected)):
            select(entries, device, "shop", wanted)


def test_several_entries_are_told_apart(entries: list[PublishedEntry]) -> None:
    """It lists what differs with its values, and nothing that does not."""
    with pytest.raises(UsageProblem) as caught:
        select(entries, "T4", "shop", {"concurrency": 50})
    text = str(caught.value)
    assert "published(concurrency=50) describes 2 entries of shop for T4" in text
    assert "system: 'mosec', 'pytriton'" in text
    assert "workers: 1, nothing" in text
    assert "concurrency:" not in text
