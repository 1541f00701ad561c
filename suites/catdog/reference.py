"""Requests, and their right answers, computed in-process by the model that the servers of this suite serve."""

from __future__ import annotations

import base64
import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from suites.catdog.apps.catdog_settings import DEFAULT_SEED, LABELS, SIZES

if TYPE_CHECKING:
    from collections.abc import Sequence

PICTURES: Final = tuple(Path(__file__).parent / "pictures" / f"{number}.jpg" for number in range(4))
"""Four JPEGs of 274 x 275 pixels and 10 560 bytes, like the published one. With a single picture, as published, an
answer to the wrong request of a batch would not be noticed."""

BODY_BYTES: Final = 14_093
"""Length of a request's body, as published: 14 080 characters of base64, and the JSON around them."""

TOLERANCE: Final = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 1e-2}
"""Largest difference of a probability from that of the model in fp32 on the CPU."""


@dataclass(frozen=True)
class Prediction:
    """The right answer to a request, as ``expect`` of a load.

    Args:
        label: The likelier label.
        probability: Its probability.
        tolerance: Largest difference of the server's probability.
    """

    label: str
    probability: float
    tolerance: float

    def __call__(self, body: bytes) -> bool:
        """Compare an answer; its text may differ in its last digits.

        Raises:
            AssertionError: The label, the probability or the form of the reply is wrong.
        """
        reply = json.loads(body)
        assert reply.keys() == {"predictions"}, f"not predictions alone: {sorted(reply)}"
        (prediction,) = reply["predictions"]
        assert prediction.keys() == {"label", "probability"}, f"not label and probability: {sorted(prediction)}"
        assert prediction["label"] == self.label, f"{prediction['label']}, not {self.label}"
        error = abs(prediction["probability"] - self.probability)
        # In this order of the comparison NaN is wrong too.
        assert error <= self.tolerance, f"probability {prediction['probability']}, not {self.probability}"
        return True


def request_body(picture: Path) -> bytes:
    """The JSON of a request for one picture."""
    return json.dumps({"image": base64.b64encode(picture.read_bytes()).decode()}).encode()


def expected_predictions(
    pictures: Sequence[Path], *, size: str, precision: str = "fp32", seed: int = DEFAULT_SEED
) -> list[Prediction]:
    """Classify pictures one at a time, without batching or a server.

    Always on the CPU and in fp32, because a second process on the GPU would disturb the measurement.

    Args:
        pictures: JPEG files.
        size: Value of the server's ``--size``.
        precision: Value of its ``--precision``; sets the tolerance of its answers.
        seed: Value of its ``--seed``.
    """
    rows = _probabilities(tuple(pictures), size, seed)
    best = [max(range(len(row)), key=row.__getitem__) for row in rows]
    tolerance = TOLERANCE[precision]
    return [Prediction(LABELS[index], row[index], tolerance) for index, row in zip(best, rows, strict=True)]


@functools.cache
def _probabilities(pictures: tuple[Path, ...], size: str, seed: int) -> list[list[float]]:
    # torch takes seconds to import, and a run that only collects the tests does not need it.
    from suites.catdog.apps.catdog_model import Classifier, build_model  # noqa: PLC0415 -- as above
    from suites.catdog.apps.catdog_picture import to_pixels  # noqa: PLC0415 -- as above

    shape = SIZES[size]
    model = build_model(shape.depths, shape.widths, len(LABELS), seed)
    classifier = Classifier(model, precision="float32", device="cpu")
    return [classifier.probabilities(to_pixels(file.read_bytes(), shape.resolution)[None])[0] for file in pictures]
