"""The cats-and-dogs suite's model, pictures and reference, without a load."""

from __future__ import annotations

import importlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from suites.catdog.apps import catdog_settings
from suites.catdog.apps.catdog_settings import LABELS, PRECISIONS, SIZES
from suites.catdog.ceilings import FLOPS_PER_MAC, GIGA_MACS
from suites.catdog.reference import BODY_BYTES, PICTURES, TOLERANCE, Prediction, expected_predictions, request_body

pytestmark = pytest.mark.usefixtures("one_thread")


def _model(size: str = "small", seed: int = 1, weights: Path | None = None) -> Any:  # noqa: ANN401 - torch has no types
    from suites.catdog.apps.catdog_model import build_model

    shape = SIZES[size]
    return build_model(shape.depths, shape.widths, len(LABELS), seed, weights)


def test_network_computes_what_that_of_transformers_does() -> None:
    """With one state dict, whose names fit exactly, both give the same logits."""
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


def test_published_size_is_the_default_of_transformers() -> None:
    """Its ``ConvNextConfig()`` with two labels has the same 27 821 666 parameters, name by name, shape by shape."""
    import torch
    from transformers import ConvNextConfig, ConvNextForImageClassification

    with torch.device("meta"):
        theirs = ConvNextForImageClassification(ConvNextConfig(num_labels=len(LABELS)))
        ours = _model("tiny")
    shapes = [{name: value.shape for name, value in model.state_dict().items()} for model in (ours, theirs)]
    assert shapes[0] == shapes[1]
    assert sum(parameter.numel() for parameter in ours.parameters()) == 27_821_666


def test_cost_of_a_picture() -> None:
    """The published architecture costs 4.4548 GMAC for a picture, by the shapes alone."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    pixels = torch.empty(1, 3, SIZES["tiny"].resolution, SIZES["tiny"].resolution, device="meta")
    with torch.device("meta"), torch.inference_mode(), FlopCounterMode(display=False) as counter:
        _model("tiny")(pixels)
    assert counter.get_total_flops() == pytest.approx(FLOPS_PER_MAC * GIGA_MACS * 1e9, rel=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_answers_tell_the_pictures_apart(size: str) -> None:
    """Both labels occur, none by a hair, and no picture's answer passes for another's, in half precision either.

    The expected label is that of the greater probability, which is that label's own.
    """
    predictions = expected_predictions(PICTURES, size=size, precision="bf16")
    assert len(predictions) == len(PICTURES)
    assert {prediction.label for prediction in predictions} == set(LABELS)
    assert all(prediction.probability > 0.5 + prediction.tolerance for prediction in predictions)
    assert {prediction.tolerance for prediction in predictions} == {TOLERANCE["bf16"]}
    for place, one in enumerate(predictions):
        for other in predictions[:place]:
            assert one.label != other.label or abs(one.probability - other.probability) > one.tolerance


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision_is_within_its_tolerance(precision: str) -> None:
    """The model in-process, in a batch and in each precision, agrees with the reference: 1e-4 in fp32, else 1e-2."""
    import numpy as np

    from suites.catdog.apps.catdog_model import Classifier
    from suites.catdog.apps.catdog_picture import to_pixels

    classifier = Classifier(_model(), precision=PRECISIONS[precision], device="cpu")
    assert classifier.effective() == {"precision": PRECISIONS[precision], "device": "cpu"}
    batch = np.stack([to_pixels(file.read_bytes(), SIZES["small"].resolution) for file in PICTURES])
    expected = expected_predictions(PICTURES, size="small", precision=precision)
    for row, prediction in zip(classifier.probabilities(batch), expected, strict=True):
        assert prediction(_reply(prediction.label, row[LABELS.index(prediction.label)]))


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


def test_pixels_are_scaled_cropped_and_normalised() -> None:
    """A plain colour comes out as (value - mean) / deviation, and of a wide picture the middle is kept."""
    import numpy as np
    from PIL import Image

    from suites.catdog.apps.catdog_picture import DEVIATION, MEAN, to_pixels

    def pixels_of(picture: Image.Image) -> Any:  # noqa: ANN401 -- an array
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        return to_pixels(buffer.getvalue(), 224)

    plain = pixels_of(Image.new("RGB", (274, 275), (51, 102, 204)))
    assert (plain.shape, plain.dtype) == ((3, 224, 224), np.float32)
    expected = (np.array([51, 102, 204]) / 255 - MEAN) / DEVIATION
    assert np.abs(plain - expected[:, None, None]).max() < 1e-5
    # 800 x 400 becomes 512 x 256, of which columns 144 to 368 stay: dark at the left up to 256, then bright.
    wide = Image.new("L", (800, 400), 200)
    wide.paste(50, (0, 0, 400, 400))
    halves = pixels_of(wide)[0]
    dark, bright = ((level / 255 - MEAN[0]) / DEVIATION[0] for level in (50, 200))
    assert np.abs(halves[:, :104] - dark).max() < 1e-5
    assert np.abs(halves[:, 120:] - bright).max() < 1e-5


def _reply(label: str, probability: object, **more: object) -> bytes:
    return json.dumps({"predictions": [{"label": label, "probability": probability}], **more}).encode()


def test_expectation_takes_what_is_within_the_tolerance() -> None:
    """Its text may differ; another label, a probability too far off, NaN, and every other form are wrong answers."""
    expected = Prediction("Cats", 0.75, 0.01)
    assert expected(_reply("Cats", 0.7599))
    assert expected(_reply("Cats", 0.7401))
    for body in (
        _reply("Dogs", 0.75),
        _reply("Cats", 0.7611),
        _reply("Cats", 0.7389),
        _reply("Cats", float("nan")),
        _reply("Cats", 0.75, settings={}),
        b'{"predictions": []}',
        b'{"predictions": [{"label": "Cats"}]}',
        b'{"detail": "no image"}',
        b"Cats",
    ):
        with pytest.raises((AssertionError, ValueError)):
            expected(body)


def test_bf16_is_refused_on_a_gpu_without_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """On compute capability 7.5 the app does not start in bf16, and says what to do; it does where it is told to."""
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
