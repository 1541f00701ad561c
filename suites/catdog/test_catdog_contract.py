"""What the LitServe app answers, in each precision: right answers, refusals, and what it says of its model."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from suites.catdog.apps.catdog_settings import PRECISIONS
from suites.catdog.reference import PICTURES, expected_predictions, request_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuserve.servers.instance import Instance
    from pytest_gpuserve.trial.handle import ServerHandle

JSON = {"Content-Type": "application/json"}

ANSWER_SECONDS = 30.0
"""A deadline that only a server that hangs reaches."""

HALF = [pytest.param("fp16", marks=pytest.mark.gpuserve_full), pytest.param("bf16", marks=pytest.mark.gpuserve_full)]


@dataclass(frozen=True)
class Served:
    """A server that runs.

    Args:
        instance: It.
        precision: What it was asked for.
    """

    instance: Instance
    precision: str

    def ask(self, body: bytes) -> tuple[int, bytes]:
        """Post a body; returns the status and the body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.instance.site.port, timeout=ANSWER_SECONDS)
        try:
            connection.request("POST", "/predict", body, JSON)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@pytest.fixture(scope="module", params=["fp32", *HALF])
def served(
    request: pytest.FixtureRequest, litserve_server: Callable[..., ServerHandle], size: str, accelerator: str
) -> Iterator[Served]:
    """A server that waits long enough for a batch that several requests certainly meet in one."""
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
        yield Served(instance, request.param)


@pytest.mark.smoke
def test_answers_are_those_of_the_model(served: Served, size: str) -> None:
    """Each picture gets the label and probability of the model in-process: within 1e-4 in fp32, 1e-2 in half."""
    predictions = expected_predictions(PICTURES, size=size, precision=served.precision)
    assert {prediction.label for prediction in predictions} == {"Cats", "Dogs"}
    for picture, expected in zip(PICTURES, predictions, strict=True):
        status, body = served.ask(request_body(picture))
        assert status == 200
        assert expected(body)


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"{}", 400, 'no \\"image\\"'),
        (b'{"image": 3}', 400, 'no \\"image\\"'),
        (b'{"image": "~"}', 400, "is not base64"),
        (b'{"image": "aGVsbG8="}', 400, "is no picture"),
        (request_body(PICTURES[0])[:4011] + b'"}', 400, "only a part of one"),
        (b"[]", 422, "valid dictionary"),
    ],
    ids=["empty", "number", "not base64", "no picture", "truncated", "list"],
)
def test_a_bad_request_is_refused(served: Served, body: bytes, status: int, told: str) -> None:
    """A request without a picture gets an error status and a text that says what is wrong with it."""
    answered, text = served.ask(body)
    assert answered == status
    assert told in text.decode()


def test_a_bad_request_does_not_fail_its_batch(served: Served, size: str) -> None:
    """Requests that shared a batch with bad ones are answered as if these had not been there."""
    before = served.instance.counters()
    bodies = [request_body(PICTURES[1]), b"{}", request_body(PICTURES[2]), b'{"image": "~"}', request_body(PICTURES[3])]
    with ThreadPoolExecutor(len(bodies)) as threads:
        answers = list(threads.map(served.ask, bodies))
    after = served.instance.counters()
    assert before is not None
    assert after is not None
    assert after.items - before.items == len(bodies)
    assert after.batches - before.batches < len(bodies)
    assert [status for status, _ in answers] == [200, 400, 200, 400, 200]
    predictions = expected_predictions(PICTURES[1:], size=size, precision=served.precision)
    assert all(expected(answers[2 * place][1]) for place, expected in enumerate(predictions))


def test_the_model_is_what_was_asked_for(served: Served, accelerator: str) -> None:
    """The worker tells the type of its weights: the published "float16" server computed in bfloat16 unnoticed."""
    status, body = served.ask(request_body(PICTURES[0])[:-1] + b', "settings": true}')
    assert status == 200
    settings = json.loads(body)["settings"]
    assert settings["precision"] == PRECISIONS[served.precision]
    assert settings["device"].partition(":")[0] == accelerator
