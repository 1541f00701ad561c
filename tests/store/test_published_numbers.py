"""Each of the 799 published numbers is what its document prints: read anew from the quoted lines, and compared whole.

The lines are quoted in ``data/published``. With ``GPUSERVE_DOCUMENTS=FOLDER`` the quotes are compared with the
documents themselves, which are recognised by their SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.device.card import device_name
from pytest_gpuserve.store.published import UNNAMED, read_published, suites
from suites.tft.table import AVERAGE, COMPONENTS, PERCENTILES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.store.published import Record


QUOTES = Path(__file__).parent / "data" / "published"


@dataclass(frozen=True)
class Quotes:
    """Lines of a document.

    Args:
        document: Its repository and path.
        sha256: Of its text.
        lines: By their number from 1, in order.
    """

    document: str
    sha256: str
    lines: Mapping[int, str]
    numbers: Sequence[int]

    @classmethod
    def of(cls, suite: str) -> Quotes:
        """Read what a suite's document is quoted with."""
        data = json.loads((QUOTES / f"{suite}.json").read_text(encoding="utf-8"))
        lines = {int(line): text for line, text in data["lines"].items()}
        return cls(data["document"], data["sha256"], lines, sorted(lines))

    @property
    def source(self) -> tuple[str, str]:
        """Which document it is, and the SHA-256 of its text."""
        return self.document, self.sha256

    def line(self, line: int) -> str:
        """A line, without the blanks around it."""
        return self.lines[line].strip()

    def above(self, line: int, pattern: str) -> re.Match[str]:
        """The last line above this one that matches."""
        above = reversed(self.numbers[: bisect_left(self.numbers, line)])
        return next(found for each in above if (found := re.search(pattern, self.line(each))))

    def block(self, begin: int, end: str) -> str:
        """This line and those below it, before the next that matches ``end``."""
        below = self.numbers[bisect_right(self.numbers, begin) :]
        stop = next((each for each in below if re.search(end, self.line(each))), None)
        return "\n".join(self.line(each) for each in (begin, *below) if stop is None or each < stop)


@dataclass(frozen=True)
class Read:
    """What the document says of an entry, in a baseline's units. ``keys`` may say less than it."""

    keys: Mapping[str, Any]
    values: Mapping[str, float]
    printed: float | None = None
    breakdown: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)


def number(pattern: str, text: str) -> float:
    """The number that a pattern's group finds, whose thousands may be set apart by commas."""
    found = re.search(pattern, text, re.MULTILINE)
    assert found, (pattern, text)
    return float(found[1].replace(",", ""))


def numbers(pattern: str, text: str) -> list[tuple[float, float]]:
    """Pairs of numbers, a line each."""
    return [(float(one), float(other)) for one, other in re.findall(pattern, text, re.MULTILINE)]


def distilbert(quotes: Quotes, record: Record) -> Read:
    """A command, what the card did meanwhile, and what hey printed."""
    command = quotes.line(record.lines["command"]).strip("`")
    assert record.load.startswith(command)
    text = quotes.block(record.lines["command"], r"^###|^If we change|^$")
    text = text[: text.index("responses")]
    processes = quotes.above(record.lines["command"], r"^### |inference number to (\d)")
    c = re.search(r" -c (\d+) ", command)
    bytes_of = {"response_bytes": r"Total data:\s+(\d+) bytes", "response_bytes_each": r"Size/request:\s+(\d+) bytes"}
    throughput = number(r"^Requests/sec:\s+(.+)$", text)
    return Read(
        keys={
            "system": quotes.above(record.line, r"^### (\w+)")[1],
            "concurrency": int(c[1]) if c else 50,
            "workers": int(processes[1] or 1),
            "batch": 1,
        },
        values={
            "throughput": throughput,
            "total_seconds": number(r"^Total:\s+([\d.]+) secs", text),
            "latency.max": number(r"^Slowest:\s+([\d.]+) secs", text),
            "latency.min": number(r"^Fastest:\s+([\d.]+) secs", text),
            "latency.mean": number(r"^Average:\s+([\d.]+) secs", text),
            **{f"latency.p{q:.0f}": seconds for q, seconds in numbers(r"^(\d+)% in ([\d.]+) secs", text)},
            "gpu_utilisation": number(r"^- GPU Util: (\d+)%", text) / 100,
            "gpu_memory": number(r"^- GPU Memory: (\d+)MiB", text) * 2**20,
            "gpu_memory_of_card": number(r"^- GPU Memory: \d+MiB / (\d+)MiB", text) * 2**20,
        },
        printed=throughput,
        counters={
            name: int(number(pattern, text))
            for name, pattern in bytes_of.items()
            if re.search(pattern, text, re.MULTILINE)
        },
    )


MISSPELT = "nference_compute_infer_duration_us"
"""As line 114 has it."""


def codegen(quotes: Quotes, record: Record) -> Read:
    """Counters of one model, or what is said of all of them below the counters."""
    length = int(quotes.above(record.line + 1, r"^### Output Length: (\d+)")[1])
    if record.keys["record_kind"] == "triton_metrics":
        counters = {}
        for name, line in record.lines.items():
            found = re.fullmatch(r'(\w+)\{model="(.+?)",version="1"\} (\d+)', quotes.line(line))
            assert found
            assert found[1] == (MISSPELT if line == 114 else f"nv_inference_{name}")
            assert found[2] == record.keys["model"]
            counters[f"nv_inference_{name}"] = int(found[3])
        return Read({"output_len": length, "batch": 1}, ratio(counters, record), counters=counters)
    text = quotes.block(record.line, "^### Output Length")
    counters = {
        "nv_inference_count": int(number(r'^nv_inference_count\{model="ensemble",version="1"\} (\d+)$', text)),
        "nv_inference_exec_count": int(number(r'^nv_inference_exec_count\{model="codegen.+"\} (\d+)$', text)),
    }
    throughput = number(r"^- RPS .+ reaches around ([\d,]+)\.$", text)
    return Read(
        keys={"output_len": length, "batch": 1},
        values={
            "throughput": throughput,
            "latency.mean": number(r"^- The average response time is ([\d,]+) ms\.$", text) / 1000,
            "preprocessing_share": number(r"^- Preprocessing spends ([\d.]+)%", text) / 100,
            "postprocessing_share": number(r"^- Postprocessing spends ([\d.]+)%", text) / 100,
            **ratio(counters, record),
        },
        printed=throughput,
        counters=counters,
    )


def ratio(counters: Mapping[str, int], record: Record) -> dict[str, float]:
    """Items in a batch; an ensemble's own executions are its requests."""
    if record.keys["model"] == "ensemble" and record.keys["record_kind"] == "triton_metrics":
        return {}
    return {
        "batching_ratio": float(f"{counters['nv_inference_count'] / counters['nv_inference_exec_count']:.8g}"),
    }


def catdog(quotes: Quotes, record: Record) -> Read:
    """A line of the client, below the settings of its experiment; or a ceiling that was computed."""
    line = quotes.line(record.line)
    kind = record.keys["record_kind"]
    if kind == "theoretical":
        bits = str(record.keys["precision"]).removeprefix("float")
        throughput = number(r"= ([\d,]+) request per second$", line)
        seconds = re.search(r"= 1/ (?:(\d+) micro second|([\d.]+)×10\^\((-\d+)\)) =", line)
        assert seconds
        return Read(
            keys={},
            values={
                "throughput": throughput,
                "time_of_one": float(seconds[1]) / 1e6 if seconds[1] else float(f"{seconds[2]}e{seconds[3]}"),
                "peak_flops": number(r"- ([\d.]+)$", quotes.above(record.line, f"TFLOPS - Float {bits}").string) * 1e12,
                "model_operations": number(r"= ([\d.]+)×10\^9", quotes.above(record.line, "Model FLOPS").string) * 1e9,
            },
            printed=throughput,
        )
    experiment = quotes.above(record.line, r"^### Experiment (\d)")
    begun = next(each for each in reversed(quotes.numbers) if quotes.line(each) == experiment.string)
    runs = [n for n in quotes.numbers if begun < n < record.line and re.search(r"num_requests\*+ :", quotes.line(n))]
    stated = quotes.above(record.line, r"precision\*").string
    keys = {
        "experiment": int(experiment[1]),
        "run": len(runs),
        "server": quotes.above(record.line, r"^\*\*Server\*\*: (.+)$")[1],
    }

    if kind == "baseline":
        found = re.fullmatch(r"Batch size (\d+): ([\d.]+) reqs/sec", line)
        assert found
        batch, images = int(found[1]), float(found[2])
        return Read(
            keys={**keys, "batch": batch, "precision": "float32"},
            values={"throughput": images / batch},
            printed=images,
        )
    found = re.fullmatch(r"Concurrency (\d+): ([\d.]+) reqs/sec, CPU: ([\d.]+)%, GPU: ([\d.]+)%", line)
    assert found
    return Read(
        keys={
            **keys,
            "batch": 1,
            "concurrency": int(found[1]),
            "precision": "float32" if "(float32)" in stated else "float16",
            "workers": int(number(r"workers\W+(\d+)", stated)),
        },
        values={
            "throughput": float(found[2]),
            "cpu_utilisation": float(found[3]) / 100,
            "gpu_utilisation": float(found[4]) / 100,
        },
        printed=float(found[2]),
    )


LATENCIES = {AVERAGE: "latency.mean", **{title: f"latency.p{percent}" for percent, title in PERCENTILES.items()}}


def tft(quotes: Quotes, record: Record) -> Read:
    """A row of a table, by the names of its columns, below its configuration and its heading."""
    heading = quotes.above(record.line, "^####").string
    assert quotes.line(record.lines["section"]) == heading
    found = re.fullmatch(r"#### (\w+): (.+), (NVIDIA TensorRT|PyTorch) with (\w+), Dataset: (\w+)", heading)
    assert found
    table = quotes.block(record.lines["section"], r"^\| *Batch")
    stated = dict(re.findall(r"^\| *([^|]+?) *\| *([^|]+?) *\|$", table, re.MULTILINE))
    assert (found[2], found[3], found[4], found[5]) == tuple(
        stated[name] for name in ("GPU", "Backend", "Precision", "Dataset")
    )
    names = cells(quotes.above(record.line, r"^\| *Batch").string)
    row = dict(zip(names, map(float, cells(quotes.line(record.line))), strict=True))

    return Read(
        keys={
            "scenario": found[1].lower(),
            "backend": found[3],
            "precision": found[4],
            "dataset": found[5],
            "model_format": stated["Model format"],
            "workers": int(stated["Number of model instances"]),
            "batch": int(row["Batch"]),
            "concurrency": int(row["Concurrency"]),
        },
        values={
            "throughput": row["Inferences/Second"] / row["Batch"],
            **{name: row[column] / 1000 for column, name in LATENCIES.items()},
        },
        printed=row["Inferences/Second"],
        breakdown={name: row[column] / 1000 for name, column in COMPONENTS.items()},
    )


def cells(row: str) -> list[str]:
    """The cells of a table's row."""
    return [cell.strip() for cell in row.strip("|").split("|")]


def resnet(quotes: Quotes, record: Record) -> Read:
    """What a command printed."""
    command = quotes.line(record.lines["command"])
    assert record.load.startswith(command)
    text = quotes.block(record.line, "^```")
    batch, samples = int(number(r"--batch_size (\d+)", command)), number(r"^Throughput .+: ([\d.]+) samples", text)
    return Read(
        keys={"batch": batch},
        values={
            "throughput": samples / batch,
            "torch_load_seconds": number(r"^torch\.load\(\) time: ([\d.]+) s$", text),
            "compile_call_seconds": number(r"^m\.compile\(\) time .+: ([\d.]+) s$", text),
            "warmup_latency": number(r"^Warmup latency: ([\d.]+) s$", text),
            "latency.mean": number(r"^Average latency .+: ([\d.]+) \+/- ", text),
            "latency.sd": number(r"^Average latency .+ \+/- ([\d.]+) s$", text),
            "latency.max": number(r"^Max latency: ([\d.]+) s$", text),
            "latency.min": number(r"^Min latency: ([\d.]+) s$", text),
            "gpu_utilisation": number(r"^Average GPU utilization: ([\d.]+)$", text) / 100,
        },
        printed=samples,
    )


READERS: Mapping[str, Callable[[Quotes, Record], Read]] = {
    "catdog": catdog,
    "codegen": codegen,
    "distilbert": distilbert,
    "resnet": resnet,
    "tft": tft,
}


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
