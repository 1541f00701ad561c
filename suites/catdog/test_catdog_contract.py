"""Answers of the LitServe app, in each precision: right answers, refusals, and its report of the model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.answers import Refused
from suites.catdog.apps.catdog_settings import PRECISIONS
from suites.catdog.reference import PICTURES, expected_predictions, request_body
from suites.concurrent_requests import send_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuserve.answers import Answer
    from pytest_gpuserve.experiment.handle import ServerHandle, Target
    from pytest_gpuserve.servers.instance import Instance

JSON = {"Content-Type": "application/json"}

HALF = [pytest.param("fp16", marks=pytest.mark.gpuserve_full), pytest.param("bf16", marks=pytest.mark.gpuserve_full)]


@dataclass(frozen=True)
class Served:
    """A running server.

    Args:
        server: Its description.
        instance: Its instance.
        precision: The requested precision.
    """

    server: ServerHandle
    instance: Instance
    precision: str

    def post(self, body: bytes) -> Target:
        """A request with this body."""
        return self.server.post("/predict", body=body, headers=JSON)

    def ask(self, body: bytes) -> Answer:
        """Post this body."""
        return self.post(body).ask(self.instance)


@pytest.fixture(scope="module", params=["fp32", *HALF])
def served(
    request: pytest.FixtureRequest, litserve_server: Callable[..., ServerHandle], size: str, accelerator: str
) -> Iterator[Served]:
    """A server with so long a wait for a batch that several requests certainly share one."""
    server = litserve_server(
        "apps/catdog_litserve.py",
        precision=request.param,
        size=size,
        accelerator=accelerator,
        max_batch_size=8,
        batch_timeout=0.2,
        allow_emulated=request.param == "bf16",
    )
    with server.post("/predict", body=request_body(PICTURES[0]), headers=JSON).started() as instance:
        yield Served(server, instance, request.param)


@pytest.mark.smoke
def test_answers_are_those_of_the_model(served: Served, size: str) -> None:
    """Each picture gets the label and probability of the model in-process: within 1e-4 in fp32, 1e-2 in half."""
    predictions = expected_predictions(PICTURES, size=size, precision=served.precision)
    assert {prediction.label for prediction in predictions} == {"Cats", "Dogs"}
    for picture, expected in zip(PICTURES, predictions, strict=True):
        assert expected(served.ask(request_body(picture)).body)


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"{}", 400, 'no \\"image\\"'),
        (b'{"image": 3}', 400, 'no \\"image\\"'),
        (b'{"image": "~"}', 400, "is not base64"),
        (b'{"image": "aGVsbG8="}', 400, "is not a picture"),
        (request_body(PICTURES[0])[:4011] + b'"}', 400, "only a part of one"),
        (b"[]", 422, "valid dictionary"),
    ],
    ids=["empty", "number", "not base64", "no picture", "truncated", "list"],
)
def test_a_bad_request_is_refused(served: Served, body: bytes, status: int, told: str) -> None:
    """A request without a picture gets an error status and a text with the reason."""
    with pytest.raises(Refused) as refused:
        served.ask(body)
    assert refused.value.status == status
    assert told in refused.value.body.decode()


def test_a_bad_request_does_not_fail_its_batch(served: Served, size: str) -> None:
    """Requests that shared a batch with bad ones are answered as if these had been absent."""
    before = served.instance.counters()
    bodies = [request_body(PICTURES[1]), b"{}", request_body(PICTURES[2]), b'{"image": "~"}', request_body(PICTURES[3])]
    answers = send_together([served.post(body) for body in bodies], served.instance, at_once=len(bodies))
    after = served.instance.counters()
    assert before is not None
    assert after is not None
    assert after.items - before.items == len(bodies)
    assert after.batches - before.batches < len(bodies)
    refused = [answer.status if isinstance(answer, Refused) else None for answer in answers]
    assert refused == [None, 400, None, 400, None]
    predictions = expected_predictions(PICTURES[1:], size=size, precision=served.precision)
    assert all(expected(answers[2 * place].body) for place, expected in enumerate(predictions))


def test_the_model_is_what_was_asked_for(served: Served, accelerator: str) -> None:
    """The worker reports the type of its weights: the published "float16" server computed in bfloat16 unnoticed."""
    settings = json.loads(served.ask(request_body(PICTURES[0])[:-1] + b', "settings": true}').body)["settings"]
    assert settings["precision"] == PRECISIONS[served.precision]
    assert settings["device"].partition(":")[0] == accelerator
