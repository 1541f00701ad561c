"""Each of the 799 published numbers is what its document prints: read anew from the quoted lines, and compared whole.

The lines are quoted in ``data/published``. With ``GPUSERVE_DOCUMENTS=FOLDER`` the quotes are compared with the
documents themselves, which are recognised by their SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.device.names import device_name
from pytest_gpuserve.store.published import UNNAMED, read_published, suites
from tests.store.printed import READERS, Quotes

if TYPE_CHECKING:
    from pytest_gpuserve.store.published import PublishedEntry

BASELINES = Path(__file__).parents[2] / "baselines"

DOCUMENTS = "GPUSERVE_DOCUMENTS"
"""Environment variable: a folder with the documents."""

COUNTS = {"catdog": 86, "codegen": 20, "distilbert": 4, "resnet": 1, "tft": 688}

NVML_NAMES = {
    "NVIDIA T4": "Tesla T4",
    "NVIDIA A30": "NVIDIA A30",
    "NVIDIA A100-SXM4-80GB": "NVIDIA A100-SXM4-80GB",
    "NVIDIA DGX A100 (1x A100 80GB)": "NVIDIA A100-SXM4-80GB",
    "NVIDIA DGX-1 (1x V100 32GB)": "Tesla V100-SXM2-32GB",
}
"""What NVML calls the cards that documents name."""


ALL_SUITES = pytest.mark.parametrize("suite", COUNTS)


def test_there_are_799() -> None:
    """Every record of the five documents is in one file, and there is no other."""
    assert suites(BASELINES) == list(COUNTS)
    assert {suite: len(read_published(BASELINES, suite)) for suite in COUNTS} == COUNTS
    assert sum(COUNTS.values()) == 799


@ALL_SUITES
def test_each_number_is_what_the_document_prints(suite: str) -> None:
    """Values, counters, parts of the latency and settings are those of the quoted lines: all of them, and no more."""
    quotes = Quotes.of(suite)
    for entry in read_published(BASELINES, suite):
        record = entry.record
        read = READERS[suite](quotes, record)
        where = str(entry)
        assert record.values == pytest.approx(read.values, rel=1e-12), where
        assert (None if record.printed is None else record.printed.throughput) == read.printed, where
        assert record.breakdown == pytest.approx(read.breakdown, rel=1e-12), where
        assert record.counters == read.counters, where
        assert record.answers == read.answers, where
        assert record.histogram == list(read.histogram), where
        assert record.settings == read.settings, where
        assert {name: record.keys.get(name) for name in read.keys} == read.keys, where


@ALL_SUITES
def test_an_entry_is_of_its_own_line(suite: str) -> None:
    """No two entries cite the same line, and they name the quoted document by its SHA-256."""
    quotes, entries = Quotes.of(suite), read_published(BASELINES, suite)
    assert len({entry.record.line for entry in entries}) == len(entries)
    documents = {(f"{each.document.repository} {each.document.path}", each.document.sha256) for each in entries}
    assert documents == {(quotes.document, quotes.sha256)}


def test_every_row_of_the_tables_is_taken() -> None:
    """Of 32 tables with 688 rows none is left out."""
    quotes = Quotes.of("tft")
    rows = [line for line in quotes.numbers if re.match(r"\| +\d", quotes.line(line))]
    assert sorted(entry.record.line for entry in read_published(BASELINES, "tft")) == rows


@ALL_SUITES
def test_the_folder_is_the_card(suite: str) -> None:
    """A document's name of a card leads by that of NVML to the folder; what nobody named has its own."""
    quotes = Quotes.of(suite)
    for entry in read_published(BASELINES, suite):
        if entry.gpu is None:
            assert entry.device == UNNAMED
            continue
        assert entry.device == device_name(NVML_NAMES[entry.gpu])
        if suite == "tft":
            assert quotes.above(entry.record.line, r"^\| GPU *\|(.+?) *\|")[1] == entry.gpu
        else:
            said = quotes.above(entry.record.line, r"^(?:- )?GPU: .*?(T4|A100-SXM4-80GB)")
            assert entry.gpu == f"NVIDIA {said[1]}"


def biases(entry: PublishedEntry) -> str:
    """All that is known to be wrong with an entry."""
    return "\n".join(entry.record.bias)


def test_an_online_throughput_below_littles_law_says_so() -> None:
    """Throughput x mean latency is what was in flight: where that is under 95 % of the concurrency, it is told."""
    told = 0
    for entry in read_published(BASELINES, "tft"):
        values, keys = entry.record.values, entry.record.keys
        share = values["throughput"] * values["latency.mean"] / float(keys["concurrency"])
        text = f"{share:.2f} of what its latency and concurrency imply, so throughput is biased low"
        is_low = keys["scenario"] == "online" and share < 0.95
        assert (text in entry.record.bias) is is_low, entry
        assert is_low or "biased low" not in biases(entry)
        told += is_low
    assert told == 298


def test_codegen_tells_that_its_throughput_is_a_peak() -> None:
    """A ramp's peak is no steady throughput, a share may be cut off, and an ensemble has no batching ratio."""
    for entry in read_published(BASELINES, "codegen"):
        record = entry.record
        is_summary = record.keys["record_kind"] == "loadtest_summary"
        assert ("peak of the ramp" in biases(entry)) is is_summary
        is_ensemble = record.keys["model"] == "ensemble" and not is_summary
        assert ("no batching ratio" in biases(entry)) is is_ensemble
        assert ("batching_ratio" in record.values) is not is_ensemble
        assert ("cut off" in biases(entry)) is (is_summary and record.keys["output_len"] == 8)


def test_catdog_tells_what_differs_from_what_is_stated() -> None:
    """A run without warm-up, what the sampler's tick costs, and what the code set otherwise than the text says."""
    for entry in read_published(BASELINES, "catdog"):
        record = entry.record
        if record.keys["record_kind"] != "api":
            assert not record.effective
            continue
        seconds = float(record.settings["requests"]) / record.values["throughput"]
        assert f"in its {seconds:.2f} s: throughput is up to {0.2 / seconds * 100:.0f} % low" in biases(entry)
        assert ("cold start" in biases(entry)) is (record.keys["concurrency"] == 1)
        assert ("bfloat16" in biases(entry)) is (record.keys["precision"] == "float16")
        assert ("bfloat16" in record.effective.values()) is (record.keys["precision"] == "float16")
        for name, used in record.effective.items():
            assert str(used) in biases(entry)
            assert used != record.settings.get(name, record.keys.get(name))


def test_distilbert_and_resnet_tell_their_own() -> None:
    """Ten microseconds, the autograd graph, and a throughput that is no rate."""
    for entry in read_published(BASELINES, "distilbert"):
        is_pytriton = entry.record.keys["system"] == "pytriton"
        assert ("10 us" in biases(entry)) is is_pytriton
        assert ("autograd" in biases(entry)) is is_pytriton
        assert entry.record.effective == ({"max_wait_seconds": 1e-5} if is_pytriton else {})
    (entry,) = read_published(BASELINES, "resnet")
    assert "counts queueing" in biases(entry)
    values = entry.record.values
    assert values["throughput"] == pytest.approx(1 / values["latency.mean"], rel=1e-4)


@ALL_SUITES
def test_the_quotes_are_letter_for_letter(suite: str) -> None:
    """Given the documents, each quoted line stands there under its number."""
    folder = os.environ.get(DOCUMENTS)
    if not folder:
        pytest.skip(f"the documents are not part of this repository; name their folder: {DOCUMENTS}=FOLDER")
    quotes = Quotes.of(suite)
    texts = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in Path(folder).iterdir() if path.is_file()}
    assert quotes.sha256 in texts, f"{folder} has no document of this SHA-256: {quotes.document}"
    lines = texts[quotes.sha256].read_text(encoding="utf-8").split("\n")
    assert {line: lines[line - 1] for line in quotes.numbers} == quotes.lines
