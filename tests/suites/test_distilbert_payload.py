"""The DistilBERT suite's requests, the settings of its two servers, and what it prints of a run; no servers."""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.measure.histogram import Histogram, bucket_of
from pytest_gpuserve.measure.summary import Summary
from suites.distilbert.apps import distilbert_model
from suites.distilbert.payload import FOX, SENTENCES, kserve_body
from suites.distilbert.printed import as_printed, save_printed
from suites.distilbert.settings import AS_PUBLISHED, EQUALISED, MOSEC, PYTRITON

if TYPE_CHECKING:
    from types import ModuleType

APPS = Path(distilbert_model.__file__).parent
HEADER = (
    b'{"id":"0","inputs":[{"name":"messages","shape":[1,1],"datatype":"BYTES",'
    b'"parameters":{"binary_data_size":47}}],"outputs":[{"name":"labels","parameters":{"binary_data":true}}]}'
)
pytestmark = pytest.mark.usefixtures("one_thread")


def app(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A file of the apps, which finds its neighbours by their bare names."""
    if name != "distilbert_options":
        pytest.importorskip(name.removeprefix("distilbert_"))
    monkeypatch.syspath_prepend(str(APPS))
    return importlib.import_module(name)


def flags(arguments: dict[str, str | int | bool]) -> list[str]:
    """Arguments as the server fixtures put them on a command line."""
    return [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in arguments.items()]


def test_published_request_is_222_bytes_of_which_175_are_json() -> None:
    """The body is the published one to the byte; a reply that is right for its sentence is not for the others."""
    body, header_length = kserve_body(FOX)
    assert body == HEADER + b"\x2b\x00\x00\x00" + FOX
    assert (header_length, len(body) - header_length, len(body)) == (175, 47, 222)
    assert SENTENCES[0] == FOX
    assert len(set(SENTENCES)) == len(SENTENCES)


@pytest.mark.parametrize("workers", [1, 2])
def test_mosec_has_two_stages_with_twice_as_many_for_tokenizing(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tokenizing processes for each inference process; only inference batches, 32 at most, within 10 ms."""
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
    """The published service waited the 10 ms that its text says; autograd was off in it, padding was not masked."""
    mosec_app = app("distilbert_mosec", monkeypatch)
    # mosec makes up another folder for its sockets each time.
    equalised = vars(mosec_app.parse_options(["--path=x", *flags(MOSEC[EQUALISED])]))
    published = vars(mosec_app.parse_options(["--path=x", *flags(MOSEC[AS_PUBLISHED])]))
    assert dict(published.items() - equalised.items()) == {"grad_mode": "no_grad", "no_attention_mask": True}
    found = [equalised[name] for name in ("max_wait_ms", "grad_mode", "no_attention_mask")]
    assert found == [10, "inference_mode", False]


def test_variants_of_pytriton_differ_by_a_factor_of_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 microseconds were published as 10 ms; equalised it is 10 ms, warm, and without autograd."""
    pytriton_app = app("distilbert_pytriton", monkeypatch)
    equalised = vars(pytriton_app.parse_options(flags(PYTRITON[EQUALISED])))
    published = vars(pytriton_app.parse_options(flags(PYTRITON[AS_PUBLISHED])))
    changed = {"max_queue_delay_us": 10, "grad_mode": "enable_grad", "no_warm_up": True}
    assert dict(published.items() - equalised.items()) == changed
    assert (equalised["max_queue_delay_us"], equalised["max_batch_size"]) == (10_000, 32)
    assert vars(pytriton_app.parse_options([])) == equalised


def test_contexts_and_masks_are_what_was_asked_for() -> None:
    """A graph is built in one mode only; without a mask the logits of a short text depend on a longer one beside it."""
    from suites.distilbert.apps.distilbert_model import GRAD_MODES, Classifier

    ids = [[2, 7, 8, 3], [2, *range(5, 25), 3]]
    graphs = {mode: Classifier("small", device="cpu", grad_mode=mode).logits(ids).requires_grad for mode in GRAD_MODES}
    assert graphs == {"inference_mode": False, "no_grad": False, "enable_grad": True}
    for masked in (True, False):
        classifier = Classifier("small", device="cpu", masked=masked)
        apart = (classifier.logits(ids)[0] - classifier.logits(ids[:1])[0]).abs().max().item()
        assert (apart < 1e-4) is masked


def summary(latencies_ms: list[float]) -> Summary:
    """A summary of these latencies within one second."""
    return Summary(
        requests=len(latencies_ms),
        errors=0,
        seconds=1.0,
        throughput=float(len(latencies_ms)),
        mean=sum(latencies_ms) / len(latencies_ms) / 1e3,
        max=max(latencies_ms) / 1e3,
        latency=Histogram(Counter(bucket_of(round(latency * 1e6)) for latency in latencies_ms)),
    )


def test_a_run_is_printed_as_hey_prints_it(tmp_path: Path) -> None:
    """Total, rate, fastest, slowest, average, eleven bins that hold every request, seven percentiles, bytes."""
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
