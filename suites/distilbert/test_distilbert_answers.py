"""Both servers answer like the model in this process, for any other texts in a batch; these tests do not measure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.answers import Answer, Refused
from pytest_gpuserve.load.kserve import decode_answer
from suites.concurrent_requests import send_together
from suites.distilbert.payload import FOX, HEADER_LENGTH, INFER_PATH, SENTENCES, kserve_body
from suites.distilbert.settings import AS_PUBLISHED, EQUALISED, MAX_BATCH_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.experiment.handle import ServerHandle, Target

NOT_UTF8 = b"a \xff film"


def raw(server: ServerHandle, text: bytes) -> Target:
    """The published request with some text."""
    body, header_length = kserve_body(text)
    return server.post(INFER_PATH, body=body, headers={HEADER_LENGTH: str(header_length)})


@pytest.mark.smoke
def test_mosec_answers_as_the_model_does(mosec_distilbert: Callable[..., ServerHandle], replies: list[bytes]) -> None:
    """Each reply is the model's label in 8 bytes, for any others in the batch; invalid text is refused by itself."""
    server = mosec_distilbert(EQUALISED, workers=1)
    targets = [server.post("/inference", body=text) for text in SENTENCES] * 4
    bad = server.post("/inference", body=NOT_UTF8)
    with targets[0].started() as instance:
        # Enough to fill a batch, so that texts of different lengths share one.
        *answers, refused = send_together([*targets, bad], instance, at_once=MAX_BATCH_SIZE)
    assert answers == [Answer(reply) for reply in replies] * 4
    assert {len(answer.body) for answer in answers} == {8}
    assert isinstance(refused, Refused)
    assert refused.status == 400


@pytest.mark.parametrize("variant", [pytest.param(AS_PUBLISHED, marks=pytest.mark.gpuserve_full), EQUALISED])
def test_pytriton_answers_as_the_model_does(
    pytriton_distilbert: Callable[..., ServerHandle], replies: list[bytes], variant: str
) -> None:
    """Each label is the model's, by the published body and by ``server.infer``; invalid text does not affect others."""
    server = pytriton_distilbert(variant)
    targets = [raw(server, text) for text in SENTENCES]
    described = [server.infer({"messages": [[text]]}) for text in SENTENCES]
    several = server.infer({"messages": [[text] for text in SENTENCES]})
    with targets[0].started() as instance:
        asked = [*targets, raw(server, NOT_UTF8), *described, several]
        answers = send_together(asked, instance, at_once=MAX_BATCH_SIZE)
    assert all(isinstance(answer, Answer) for answer in answers)
    labels = [decode_answer(answer.body)["labels"].tolist() for answer in answers]
    bad = labels.pop(len(targets))
    assert len(bad[0][0]) == 8
    # Several texts of one request come back in its own order.
    assert labels.pop() == [[reply] for reply in replies]
    assert labels == [[[reply]] for reply in replies] * 2


@pytest.mark.gpuserve_full
def test_published_sentence_has_its_label_without_a_mask(
    mosec_distilbert: Callable[..., ServerHandle], label: bytes
) -> None:
    """A single sentence has the same label without an attention mask, so its absence was not noticed."""
    target = mosec_distilbert(AS_PUBLISHED, workers=1).post("/inference", body=FOX)
    with target.started() as instance:
        assert target.ask(instance) == Answer(label)
