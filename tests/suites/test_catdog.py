"""The cats-and-dogs suite's model, pictures, reference, experiments and ceilings, without a load."""

from __future__ import annotations

import importlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from suites.catdog.apps import catdog_settings
from suites.catdog.apps.catdog_settings import LABELS, SIZES
from suites.catdog.ceilings import (
    FLOPS_PER_MAC,
    GIGA_MACS,
    PUBLISHED_GIGA_MACS,
    PUBLISHED_TFLOPS,
    ceiling_as_published,
    ceiling_per_second,
    efficiency,
    peak_tflops,
)
from suites.catdog.experiments import BATCH_SIZES, CONCURRENCIES, EXPERIMENTS, VARIANTS
from suites.catdog.reference import BODY_BYTES, PICTURES, TOLERANCE, Prediction, expected_predictions, request_body
from suites.published import records_of

pytestmark = pytest.mark.usefixtures("one_thread")


def _model(size: str = "small", seed: int = 1, weights: Path | None = None) -> Any:  # noqa: ANN401 - torch has no types
    from suites.catdog.apps.catdog_model import build_model

    shape = SIZES[size]
    return build_model(shape.depths, shape.widths, len(LABELS), seed, weights)


def test_network_computes_what_that_of_transformers_does() -> None:
    """With one state dict, whose names fit exactly, our network and that of transformers give the same logits."""
    import torch
    from transformers import ConvNextConfig, ConvNextForImageClassification

    shape = SIZES["small"]
    config = ConvNextConfig(depths=list(shape.depths), hidden_sizes=list(shape.widths), num_labels=len(LABELS))
    theirs = ConvNextForImageClassification(config).eval()
    ours = _model()
    theirs.load_state_dict(ours.state_dict(), strict=True)
    pixels = torch.randn(2, 3, shape.resolution, shape.resolution, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        difference = (ours(pixels) - theirs(pixels).logits).abs().max().item()
    assert difference < 1e-4


def test_cost_of_a_picture() -> None:
    """The published architecture costs 4.4548 GMAC for a picture, by the shapes alone."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    pixels = torch.empty(1, 3, SIZES["tiny"].resolution, SIZES["tiny"].resolution, device="meta")
    with torch.device("meta"), torch.inference_mode(), FlopCounterMode(display=False) as counter:
        _model("tiny")(pixels)
    assert counter.get_total_flops() == pytest.approx(FLOPS_PER_MAC * GIGA_MACS * 1e9, rel=1e-4)


def test_answers_tell_the_pictures_apart() -> None:
    """Both labels occur, no probability is near 0.5, and no picture's answer passes for another's in half precision."""
    predictions = expected_predictions(PICTURES, size="small", precision="bf16")
    assert len(predictions) == len(PICTURES)
    assert {prediction.label for prediction in predictions} == set(LABELS)
    assert all(prediction.probability > 0.5 + prediction.tolerance for prediction in predictions)
    assert {prediction.tolerance for prediction in predictions} == {TOLERANCE["bf16"]}
    for place, one in enumerate(predictions):
        for other in predictions[:place]:
            assert one.label != other.label or abs(one.probability - other.probability) > one.tolerance


def test_requests_are_as_long_as_the_published_ones() -> None:
    """Four different JPEGs of 274 x 275 pixels and 10 560 bytes make bodies of 14 093 bytes."""
    from PIL import Image

    data = [picture.read_bytes() for picture in PICTURES]
    assert len(set(data)) == len(PICTURES) == 4
    assert {len(each) for each in data} == {10_560}
    assert {len(request_body(picture)) for picture in PICTURES} == {BODY_BYTES}
    assert json.loads(request_body(PICTURES[0])).keys() == {"image"}
    for each in data:
        with Image.open(io.BytesIO(each)) as picture:
            assert (picture.format, picture.size) == ("JPEG", (274, 275))


def _reply(label: str, probability: object, **more: object) -> bytes:
    return json.dumps({"predictions": [{"label": label, "probability": probability}], **more}).encode()


def test_expectation_takes_what_is_within_the_tolerance() -> None:
    """Another label, a probability too far off, NaN and any other form are wrong answers; the text may differ."""
    expected = Prediction("Cats", 0.75, 0.01)
    assert expected(_reply("Cats", 0.7599))
    assert expected(_reply("Cats", 0.7401))
    for body in (
        _reply("Dogs", 0.75),
        _reply("Cats", 0.7611),
        _reply("Cats", float("nan")),
        _reply("Cats", 0.75, settings={}),
        b'{"predictions": []}',
        b"Cats",
    ):
        with pytest.raises((AssertionError, ValueError)):
            expected(body)


def test_bf16_is_refused_on_a_gpu_without_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """On compute capability 7.5 the app does not start in bf16 and names two options; the second lets it start."""
    import torch

    pytest.importorskip("litserve")
    monkeypatch.syspath_prepend(str(Path(catdog_settings.__file__).parent))
    app, model = importlib.import_module("catdog_litserve"), importlib.import_module("catdog_model")
    on_gpu = model.Classifier
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(model, "Classifier", lambda *built, device, **options: on_gpu(*built, device="cpu", **options))

    def start(*arguments: str) -> dict[str, str]:
        served = app.CatDog(app.parse_options(["--size=small", "--precision=bf16", *arguments]))
        served.setup("cuda:0")
        effective: dict[str, str] = served._classifier.effective()
        return effective

    with pytest.raises(RuntimeError, match="no units for bf16: --precision=fp16, or --allow-emulated"):
        start()
    assert start("--allow-emulated")["precision"] == "bfloat16"


@pytest.mark.parametrize(("precision", "printed"), [("fp32", 1820.0), ("fp16", 14640.0)])
def test_published_ceilings_are_reproduced(precision: str, printed: float) -> None:
    """The document's formula takes multiply-adds for operations and gives the printed 1820 and 14 640."""
    assert ceiling_as_published(PUBLISHED_TFLOPS[precision], PUBLISHED_GIGA_MACS) == printed


@pytest.mark.parametrize(("precision", "rough", "exact"), [("fp32", 910, 909), ("fp16", 7303, 7296)])
def test_right_ceilings_are_half_of_them(precision: str, rough: int, exact: int) -> None:
    """A T4 does 910 and 7303 pictures a second of 4.45 GMAC, or 909 and 7296 of the real 4.4548.

    A part of a GPU, a precision without units and an unknown GPU have no ceiling.
    """
    peak = peak_tflops("Tesla T4", precision)
    assert peak is not None
    assert int(ceiling_per_second(peak, PUBLISHED_GIGA_MACS)) == rough
    assert round(ceiling_per_second(peak, GIGA_MACS)) == exact
    assert peak_tflops("NVIDIA A30", precision, mig_profile="1g.6gb") is None
    assert peak_tflops("Tesla T4", "bf16") is peak_tflops("Tesla T40", precision) is None


@pytest.mark.parametrize(
    ("experiment", "run", "share"),
    [(1, 1, 0.305), (1, 2, 0.313), (2, 1, 0.425), (3, 1, 0.550), (4, 1, 0.471), (5, 1, 0.523), (6, 1, 0.491)],
)
def test_published_efficiencies(experiment: int, run: int, share: float) -> None:
    """An efficiency is the server's best rate by the model's; without a measurement it is an error, neither 0 nor 1."""
    records = [record for record in records_of("catdog")["T4"] if record["keys"].get("run") == run]
    api, model = (
        [
            record["printed"]["throughput"]
            for record in records
            if (record["keys"]["record_kind"], record["keys"]["experiment"]) == (kind, experiment)
        ]
        for kind in ("api", "baseline")
    )
    assert efficiency(api, model) == pytest.approx(share, abs=0.0005)
    with pytest.raises(ValueError, match="empty"):
        efficiency([], model)
    with pytest.raises(ValueError, match="empty"):
        efficiency(api, [])


def test_matrix_has_the_published_points() -> None:
    """Seven runs of six experiments over six concurrencies and batch sizes make 84 points, as many as were printed."""
    assert [experiment.number for experiment in EXPERIMENTS.values()] == [1, 1, 2, 3, 4, 5, 6]
    assert len(EXPERIMENTS) * (len(CONCURRENCIES) + len(BATCH_SIZES)) == 84
    assert CONCURRENCIES == BATCH_SIZES == (1, 8, 32, 64, 128, 256)
    assert [experiment.requests for experiment in EXPERIMENTS.values()] == [128, *[256] * 6]
    assert set(VARIANTS) == {experiment.variant for experiment in EXPERIMENTS.values()}
