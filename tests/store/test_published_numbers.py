"""Each of the 799 published numbers is what its document prints: read anew from the quoted lines, and compared whole.

The lines are quoted in ``data/published``. With ``GPUSERVE_DOCUMENTS=FOLDER`` the quotes are compared with the
documents themselves, which are recognised by their SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest

from pytest_gpuserve.device.card import device_name
from pytest_gpuserve.store.published import UNNAMED, read_published, suites
from tests.store.printed import READERS, Quotes

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
    """Every record of the five documents is in one file, and there is no other; of 32 tables no row is left out."""
    assert suites(BASELINES) == list(COUNTS)
    assert {suite: len(read_published(BASELINES, suite)) for suite in COUNTS} == COUNTS
    assert sum(COUNTS.values()) == 799
    quotes = Quotes.of("tft")
    rows = [line for line in quotes.numbers if re.match(r"\| +\d", quotes.line(line))]
    assert sorted(entry.record.line for entry in read_published(BASELINES, "tft")) == rows


@ALL_SUITES
def test_each_number_is_what_the_document_prints(suite: str) -> None:
    """Values, counters and parts of the latency are those of the quoted lines: all of them, and no more.

    No two entries cite the same line, and they name the quoted document by its SHA-256.
    """
    quotes, entries = Quotes.of(suite), read_published(BASELINES, suite)
    for entry in entries:
        record = entry.record
        read = READERS[suite](quotes, record)
        where = str(entry)
        assert record.values == pytest.approx(read.values, rel=1e-12), where
        assert (None if record.printed is None else record.printed.throughput) == read.printed, where
        assert record.breakdown == pytest.approx(read.breakdown, rel=1e-12), where
        assert record.counters == read.counters, where
        assert {name: record.keys.get(name) for name in read.keys} == read.keys, where
        assert (f"{entry.document.repository} {entry.document.path}", entry.document.sha256) == quotes.source
    assert len({entry.record.line for entry in entries}) == len(entries)


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


def test_an_online_throughput_below_littles_law_says_so() -> None:
    """Throughput x mean latency is what was in flight: where that is under 95 % of the concurrency, it is told."""
    told = 0
    for entry in read_published(BASELINES, "tft"):
        values, keys = entry.record.values, entry.record.keys
        share = values["throughput"] * values["latency.mean"] / float(keys["concurrency"])
        text = f"{share:.2f} of what its latency and concurrency imply, so throughput is biased low"
        is_low = keys["scenario"] == "online" and share < 0.95
        assert (text in entry.record.bias) is is_low, entry
        assert is_low or "biased low" not in "\n".join(entry.record.bias)
        told += is_low
    assert told == 298


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
