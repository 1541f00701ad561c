"""The DistilBERT suite's model, tokenizer, requests and settings, and its reading of latencies, without a server."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_gpuserve.measure.window import Window
from suites.distilbert import payload
from suites.distilbert.apps import distilbert_model
from suites.distilbert.apps.distilbert_model import MAX_TOKENS, PAD_ID, SIZES, Classifier, build_model, load_tokenizer
from suites.distilbert.modes import expected_modes, modes_of
from suites.distilbert.printed import as_printed, save_printed
from suites.distilbert.settings import AS_PUBLISHED, EQUALISED, MOSEC, PYTRITON
from suites.published import records_of
from tests.support.builders import window

APPS = Path(distilbert_model.__file__).parent
FOX = payload.FOX.decode()
SENTENCES = [text.decode() for text in payload.SENTENCES]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def encode() -> Callable[[str], list[int]]:
    """The tokenizer with the shipped vocabulary."""
    return load_tokenizer()


def test_fox_sentence_is_eleven_tokens(encode: Callable[[str], list[int]]) -> None:
    """The nine words are whole tokens between [CLS] and [SEP] in any case: 11 ids, as in the source.

    A made-up ASCII word needs no [UNK], and no text is longer than the model's positions.
    """
    vocabulary = (APPS / "vocab.txt").read_text(encoding="utf-8").splitlines()
    tokens = [vocabulary[index] for index in encode(FOX)]
    assert tokens == ["[CLS]", *FOX.lower().split(), "[SEP]"]
    assert len(tokens) == 11
    assert vocabulary.index("[UNK]") not in encode("Zyqwlm 4711!")
    assert len(encode("word " * 2000)) == MAX_TOKENS
    # Every size has a row for every token, each of which stands there once.
    assert len(set(vocabulary)) == len(vocabulary) <= min(shape.vocabulary for shape in SIZES.values())
    assert vocabulary[PAD_ID] == "[PAD]"


def test_full_size_has_the_published_number_of_parameters() -> None:
    """The full configuration is distilbert-base with two labels: 66 955 010 parameters."""
    import torch

    with torch.device("meta"):
        model = build_model("full")
    assert sum(parameter.numel() for parameter in model.parameters()) == 66_955_010


@pytest.mark.parametrize("size", SIZES)
def test_both_labels_occur_and_the_fox_is_decided(size: str, encode: Callable[[str], list[int]]) -> None:
    """Both labels occur, so a constant answer fails, and no rounding turns a label."""
    classifier = Classifier(size, device="cpu")
    logits = classifier.logits([encode(text) for text in SENTENCES])
    margins = logits[:, 1] - logits[:, 0]
    assert margins.abs().min().item() > 0.1
    assert margins.min().item() < 0 < margins.max().item()


def test_checkpoint_brings_its_own_weights_and_vocabulary(tmp_path: Path) -> None:
    """A saved folder is served as it is; one without a vocabulary is refused by name."""
    from torch.nn.utils import parameters_to_vector

    model = build_model("small", 3)
    model.save_pretrained(tmp_path)
    loaded, own = (parameters_to_vector(each.parameters()) for each in (build_model("full", 0, tmp_path), model))
    assert loaded.equal(own)
    with pytest.raises(FileNotFoundError, match=r"vocab\.txt"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nfox\n", encoding="utf-8")
    assert load_tokenizer(tmp_path)("the fox") == [2, 1, 5, 3]


HEADER = (
    b'{"id":"0","inputs":[{"name":"messages","shape":[1,1],"datatype":"BYTES",'
    b'"parameters":{"binary_data_size":47}}],"outputs":[{"name":"labels","parameters":{"binary_data":true}}]}'
)


def app(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the apps, which imports its neighbours by their bare names."""
    if name != "distilbert_options":
        pytest.importorskip(name.removeprefix("distilbert_"))
    monkeypatch.syspath_prepend(str(APPS))
    return importlib.import_module(name)


def flags(arguments: dict[str, str | int | bool]) -> list[str]:
    """Arguments as the server fixtures put them on a command line."""
    return [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in arguments.items()]


def test_published_request_is_222_bytes_of_which_175_are_json() -> None:
    """The request equals the published one to the byte, and no two sentences are the same."""
    body, header_length = payload.kserve_body(payload.FOX)
    assert body == HEADER + b"\x2b\x00\x00\x00" + payload.FOX
    assert (header_length, len(body) - header_length, len(body)) == (175, 47, 222)
    assert payload.SENTENCES[0] == payload.FOX
    assert len(set(payload.SENTENCES)) == len(payload.SENTENCES)


@pytest.mark.parametrize("workers", [1, 2])
def test_mosec_has_two_stages_with_twice_as_many_for_tokenizing(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each inference process has two tokenizing ones; only inference batches, at most 32 within 10 ms."""
    mosec_app = app("distilbert_mosec", monkeypatch)
    added: list[tuple[str, dict[str, int]]] = []

    class Recorder:
        def append_worker(self, worker: type, **settings: int) -> None:
            added.append((worker.__name__, settings))

        def run(self) -> None:
            added.append(("run", {}))

    monkeypatch.setattr(mosec_app, "Server", Recorder)
    monkeypatch.setattr(sys, "argv", ["distilbert_mosec.py", f"--inference-workers={workers}"])
    mosec_app.main()
    assert added == [
        ("Preprocess", {"num": 2 * workers}),
        ("Inference", {"num": workers, "max_batch_size": 32, "max_wait_time": 10}),
        ("run", {}),
    ]


def test_variants_of_mosec_differ_in_mask_and_context_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published service waits the stated 10 ms; it has autograd off and does not mask padding."""
    mosec_app = app("distilbert_mosec", monkeypatch)
    # mosec makes up another folder for its sockets each time.
    equalised = vars(mosec_app.parse_options(["--path=x", *flags(MOSEC[EQUALISED])]))
    published = vars(mosec_app.parse_options(["--path=x", *flags(MOSEC[AS_PUBLISHED])]))
    assert dict(published.items() - equalised.items()) == {"grad_mode": "no_grad", "no_attention_mask": True}
    found = [equalised[name] for name in ("max_wait_ms", "grad_mode", "no_attention_mask")]
    assert found == [10, "inference_mode", False]


def test_variants_of_pytriton_differ_by_a_factor_of_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published 10 ms were 10 microseconds; the equalised variant waits 10 ms, is warm and has no autograd."""
    pytriton_app = app("distilbert_pytriton", monkeypatch)
    equalised = vars(pytriton_app.parse_options(flags(PYTRITON[EQUALISED])))
    published = vars(pytriton_app.parse_options(flags(PYTRITON[AS_PUBLISHED])))
    changed = {"max_queue_delay_us": 10, "grad_mode": "enable_grad", "no_warm_up": True}
    assert dict(published.items() - equalised.items()) == changed
    assert (equalised["max_queue_delay_us"], equalised["max_batch_size"]) == (10_000, 32)
    assert vars(pytriton_app.parse_options([])) == equalised


def summary(latencies_ms: list[float]) -> Window:
    """A summary of these latencies within one second."""
    return window([latency / 1e3 for latency in latencies_ms], seconds=1.0)


def test_a_run_is_printed_as_hey_prints_it(tmp_path: Path) -> None:
    """The print has total, rate, extremes, average, eleven bins with every request, seven percentiles and bytes."""
    found: dict[str, Any] = as_printed(summary([float(ms) for ms in range(1, 101)]), reply_bytes=8)
    assert found["fastest_seconds"] == pytest.approx(0.001, rel=1e-3)
    assert found["average_seconds"] == pytest.approx(0.0505)
    assert (found["slowest_seconds"], found["total_seconds"], found["requests_per_second"]) == (0.1, 1.0, 100.0)
    assert (found["response_bytes_each"], found["response_bytes_total"]) == (8, 800)
    edges, counts = zip(*found["histogram_seconds"], strict=True)
    assert len(edges) == 11
    assert list(edges) == sorted(edges)
    assert sum(counts) == 100
    assert list(found["latency_seconds"]) == ["p10", "p25", "p50", "p75", "p90", "p95", "p99"]
    assert found["latency_seconds"]["p99"] == pytest.approx(0.099, rel=1e-3)
    save_printed(tmp_path / "new" / "run.json", summary([5.0]), reply_bytes=8)
    assert json.loads((tmp_path / "new" / "run.json").read_text())["status_codes"] == {"200": 1}


@pytest.mark.parametrize("concurrency", [50, 80])
def test_published_latencies_of_one_process_are_two_modes_as_arithmetic_has_it(concurrency: int) -> None:
    """With 50 users in batches of 32, 14 of 32 wait one batch and 18 two; with 80 half wait two and half three.

    Alternating batches of 32 and 18 would give one mode, so a histogram shows how large batches were.
    """
    wanted = {"system": "mosec", "concurrency": concurrency, "workers": 1}
    (record,) = [record for record in records_of("distilbert")["T4"] if wanted.items() <= record["keys"].items()]
    values = record["values"]
    first, second = modes_of(record["histogram"])
    (batches, share), (more, other_share) = expected_modes(concurrency, 32).items()
    assert first.share == pytest.approx(share, abs=0.02)
    assert second.share == pytest.approx(other_share, abs=0.02)
    # Their places have the same ratio, and a batch's time is that which the throughput says: 32 are answered in it.
    assert values["latency.p25"] / values["latency.p75"] == pytest.approx(batches / more, abs=0.03)
    assert values["latency.p25"] / batches * values["throughput"] == pytest.approx(32, rel=0.02)
    assert len(expected_modes(50, 25)) == 1
