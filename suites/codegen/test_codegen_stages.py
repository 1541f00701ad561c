"""Each model of the ensemble, the ensemble, and its counters: no load, one running server for all tests."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pytest_gpuserve.answers import Refused
from pytest_gpuserve.load.kserve import datatype_of
from pytest_gpuserve.measure.counters import counted_between
from suites.codegen.analysis import (
    mean_batch,
    mean_queue_us,
    share_by_execution,
    share_by_request,
    unexplained_seconds,
    wanted_replicas,
)
from suites.codegen.apps.byte_tokenizer import load_tokenizer
from suites.codegen.reference import expected
from suites.codegen.repository import ENSEMBLE, GENERATION, POSTPROCESSING, PREPROCESSING, STEPS
from suites.codegen.request import BINARY_BYTES, HELLO, JSON_BYTES, OPTION_NAMES, OUTPUTS, request_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from pytest_gpuserve.experiment.handle import ServerHandle
    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.servers.instance import Instance
    from suites.codegen.request import Protocol

PROMPTS = (HELLO, "import os", "", "class Tree:\n    def __init__(self", "for i in range(10):\n        print(i)")
"""Prompts of different lengths, one of them empty."""

CLIENTS = 8

protocols = pytest.mark.parametrize("protocol", ["http", "grpc"])


@dataclass(frozen=True)
class Running:
    """A running server.

    Args:
        server: Makes the requests.
        instance: The running server.
    """

    server: ServerHandle
    instance: Instance

    def ask(self, model: str, tensors: Mapping[str, object], protocol: Protocol = "http") -> dict[str, Any]:
        """Send a request to a model, and return its outputs as arrays by name."""
        return self.server.infer(tensors, model=model, grpc=protocol == "grpc").ask(self.instance).tensors

    def counters(self) -> Counters:
        """Counters at rest: Triton sends an answer before it counts its request."""
        before, counted = None, self.instance.counters()
        while counted is None or counted != before:
            time.sleep(0.2)
            before, counted = counted, self.instance.counters()
        return counted

    def counted_since(self, before: Counters) -> Counters:
        """Counts since an earlier reading at rest, at rest again."""
        return counted_between(before, self.counters())


@pytest.fixture(scope="module")
def running(codegen: ServerHandle) -> Iterator[Running]:
    """A server for the module."""
    with codegen.infer(request_tensors()).started() as instance:
        yield Running(codegen, instance)


def text_of(answer: dict[str, Any]) -> list[str]:
    """Texts of an answer."""
    return [text.decode() for text in answer["OUTPUT_0"].reshape(-1).tolist()]


def word_of(size: str) -> str:
    """A word of the published request's answer that a request can name."""
    tokenizer = load_tokenizer()
    known = expected(output_len=32, size=size)
    new = known.ids[len(tokenizer.encode(HELLO)) :]
    # A word that no other token of the answer contains, because bad words are tokens, not texts.
    words = {token: tokenizer.decode([token]) for token in new[1:]}
    for token, word in words.items():
        others = [text for other, text in words.items() if other != token]
        if tokenizer.encode(word) == [token] and word.isascii() and not any(word in text for text in others):
            return word
    pytest.skip("a full model with random weights does not write words of the shipped vocabulary")


def at_once(running: Running, seeds: list[int], output_len: int = 8) -> list[str]:
    """Send a request with each seed, from this number of clients; return the texts in the order of the seeds."""
    with ThreadPoolExecutor(CLIENTS) as clients:
        tensors = [request_tensors(output_len=output_len, seed=seed) for seed in seeds]
        return [text_of(answer)[0] for answer in clients.map(lambda each: running.ask(ENSEMBLE, each), tensors)]


@pytest.mark.smoke
@protocols
def test_each_model_then_the_ensemble(running: Running, protocol: Protocol) -> None:
    """Five prompts step by step through the three models give what the ensemble gives at once, tensor by tensor."""
    asked = request_tensors(PROMPTS, 8)
    names = {"QUERY": "INPUT_0", "REQUEST_OUTPUT_LEN": "INPUT_1", "BAD_WORDS_DICT": "INPUT_2"}
    names["STOP_WORDS_DICT"] = "INPUT_3"
    lengths = [len(load_tokenizer().encode(prompt)) for prompt in PROMPTS]
    before = running.ask(PREPROCESSING, {name: asked[given] for name, given in names.items()}, protocol)
    assert before["REQUEST_INPUT_LEN"].reshape(-1).tolist() == lengths
    assert before["INPUT_ID"].shape == (5, max(lengths))
    generated = running.ask(
        GENERATION,
        {
            "input_ids": before["INPUT_ID"],
            "input_lengths": before["REQUEST_INPUT_LEN"],
            "request_output_len": before["REQUEST_OUTPUT_LEN"],
            "bad_words_list": before["BAD_WORDS_IDS"],
            "stop_words_list": before["STOP_WORDS_IDS"],
            **{name: asked[name] for name in OPTION_NAMES},
        },
        protocol,
    )
    after = running.ask(POSTPROCESSING, {"TOKENS_BATCH": generated["output_ids"]}, protocol)
    at_once = running.ask(ENSEMBLE, asked, protocol)
    assert set(at_once) == set(OUTPUTS)
    assert at_once["OUTPUT_0"].tolist() == after["OUTPUT"].tolist()
    for name in OUTPUTS[1:]:
        np.testing.assert_allclose(at_once[name], generated[name], rtol=1e-4)


@protocols
def test_answers_are_those_of_the_model_alone(running: Running, protocol: Protocol, size: str) -> None:
    """In a batch of five each prompt gets the text and log probabilities that it gets alone, in this process."""
    answer = running.ask(ENSEMBLE, request_tensors(PROMPTS, 8), protocol)
    alone = [expected(prompt, 8, size=size) for prompt in PROMPTS]
    assert text_of(answer) == [each.text for each in alone]
    assert answer["sequence_length"].reshape(-1).tolist() == [len(each.ids) for each in alone]
    np.testing.assert_allclose(answer["output_log_probs"][:, 0], [each.log_probs for each in alone], atol=1e-3)
    sums = answer["output_log_probs"].sum(axis=-1)
    np.testing.assert_allclose(answer["cum_log_probs"], sums, rtol=1e-4)


@protocols
@pytest.mark.parametrize(
    "options",
    [{"top_k": 1}, {"top_k": 10, "top_p": 0.5}, {"temperature": 2.0}, {"repetition_penalty": 1.5}, {"seed": 7}],
    ids=lambda options: "-".join(f"{name}{value}" for name, value in options.items()),
)
def test_options_reach_the_model(running: Running, protocol: Protocol, size: str, options: dict[str, Any]) -> None:
    """Each sampling parameter has the same effect as in this process, which differs from the published one's."""
    answer = running.ask(ENSEMBLE, request_tensors(output_len=16, **options), protocol)
    assert text_of(answer) == [expected(output_len=16, size=size, **options).text]
    assert text_of(answer) != [expected(output_len=16, size=size).text]


def test_log_probs_come_where_they_are_asked_for(running: Running) -> None:
    """Without ``is_return_log_probs`` log probabilities are NaN; the text is the same."""
    with_them, without = (running.ask(ENSEMBLE, request_tensors(log_probs=asked)) for asked in (True, False))
    assert text_of(with_them) == text_of(without)
    assert np.isfinite(with_them["output_log_probs"]).all()
    assert np.isnan(without["output_log_probs"]).all()
    assert np.isnan(without["cum_log_probs"]).all()


def test_tritonclients_own_request_is_answered_alike(running: Running) -> None:
    """The body that tritonclient makes of the 15 tensors, 1443 bytes of JSON and 78 of tensors, gets our answer."""
    client = pytest.importorskip("tritonclient.http")
    inputs = []
    for name, array in request_tensors().items():
        inputs.append(client.InferInput(name, list(array.shape), datatype_of(array)))
        inputs[-1].set_data_from_numpy(array)
    body, json_bytes = client.InferenceServerClient.generate_request_body(inputs)
    assert (json_bytes, len(body) - json_bytes) == (JSON_BYTES, BINARY_BYTES)
    theirs = running.server.post(
        f"/v2/models/{ENSEMBLE}/versions/1/infer",
        body=body,
        headers={"Inference-Header-Content-Length": str(json_bytes)},
    )
    answer = theirs.ask(running.instance)
    assert text_of(answer.tensors) == text_of(running.ask(ENSEMBLE, request_tensors()))


def test_eleven_of_the_fifteen_tensors_may_be_left_out(running: Running) -> None:
    """With prompt, length and word lists alone the likeliest token is taken each time: FasterTransformer's default."""
    asked = {name: tensor for name, tensor in request_tensors().items() if name not in OPTION_NAMES}
    likeliest = request_tensors(top_k=1, temperature=1.0, repetition_penalty=1.0)
    assert text_of(running.ask(ENSEMBLE, asked)) == text_of(running.ask(ENSEMBLE, likeliest))


@pytest.mark.smoke
def test_a_seed_gives_its_text_in_any_batch(running: Running, size: str) -> None:
    """Seed 42 gives one text, alone and among 31 requests of other seeds that batch; other seeds give others."""
    before = running.counters()
    texts = at_once(running, [42 if number % 2 else number for number in range(32)])
    counted = running.counted_since(before)
    assert mean_batch(counted) > 1.2
    assert set(texts[1::2]) == {expected(size=size).text}
    assert len(set(texts[::2])) > 8


def test_bad_words_are_not_generated(running: Running, size: str) -> None:
    """A bad word does not occur in the answer that has it otherwise; a list of several words, one in quotes, works."""
    word = word_of(size)
    asked = request_tensors(output_len=32, bad_words=f'"{word}",not here,"a, b"')
    tokens = load_tokenizer().encode(text_of(running.ask(ENSEMBLE, asked))[0].removeprefix(HELLO))
    assert load_tokenizer().encode(word)[0] not in tokens


def test_an_answer_ends_with_a_stop_word(running: Running, size: str) -> None:
    """The text ends with the stop word, and so does its length; another prompt in the batch is not cut."""
    whole = running.ask(ENSEMBLE, request_tensors([HELLO, "import os"], 32))
    text, word = text_of(whole)[0], word_of(size)
    asked = request_tensors([HELLO, "import os"], 32)
    asked["INPUT_3"][0, 0] = word.encode()
    cut = running.ask(ENSEMBLE, asked)
    end = text.index(word, len(HELLO)) + len(word)
    assert text_of(cut) == [text[:end], text_of(whole)[1]]
    assert cut["sequence_length"][0, 0] < whole["sequence_length"][0, 0]
    assert np.isnan(cut["output_log_probs"][0, 0, -1])


@protocols
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_width": 2}, "beam_width above 1 is not served"),
        ({"output_len": 0}, "request_output_len is below 1"),
        ({"output_len": 4000}, "prompt and answer have 4004 tokens, above 2048"),
        ({"temperature": 0.0}, "temperature and repetition_penalty are numbers above 0"),
        ({"top_p": 1.5}, "runtime_top_p is not within 0..1"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_answered_is_refused(
    running: Running, protocol: Protocol, options: dict[str, Any], message: str
) -> None:
    """An invalid request gets an error with the reason; the next one is answered."""
    with pytest.raises(Refused, match=message):
        running.ask(ENSEMBLE, request_tensors(**options), protocol)
    assert text_of(running.ask(ENSEMBLE, request_tensors(), protocol))


def test_a_wrong_request_does_not_spoil_its_batch(running: Running) -> None:
    """Requests in a batch with invalid ones are answered as usual."""
    asked = [request_tensors(temperature=0.0 if number % 4 == 0 else 0.5) for number in range(16)]

    def answer(tensors: dict[str, Any]) -> str:
        try:
            return text_of(running.ask(ENSEMBLE, tensors))[0]
        except Refused:
            return ""

    with ThreadPoolExecutor(CLIENTS) as clients:
        texts = list(clients.map(answer, asked))
    right = text_of(running.ask(ENSEMBLE, request_tensors()))[0]
    assert texts == ["" if number % 4 == 0 else right for number in range(16)]


def test_what_is_counted_adds_up(running: Running) -> None:
    """After 64 requests each model counts 64, and only the generating one has fewer executions; times add up.

    The ensemble's executions are its requests, so they do not show batches. Its time is that of its three steps, within
    5 us a request. A batch's time is charged to each of its requests, so the share of preprocessing by request is
    smaller than that by execution.
    """
    before = running.counters()
    at_once(running, [42] * 64)
    counted = running.counted_since(before)
    parts = counted.parts
    assert {name: part.items for name, part in parts.items()} == dict.fromkeys((*STEPS, ENSEMBLE), 64)
    assert {name: part.batches for name, part in parts.items() if name != GENERATION} == dict.fromkeys(
        (PREPROCESSING, POSTPROCESSING, ENSEMBLE), 64
    )
    assert mean_batch(parts[ENSEMBLE]) == 1.0
    assert mean_batch(parts[GENERATION]) == mean_batch(counted) > 1.2
    assert sum(int(size) * count for size, count in counted.batch_sizes.items()) == 64
    assert abs(unexplained_seconds(parts)) < 5e-6
    for model in (PREPROCESSING, POSTPROCESSING):
        assert 0 < share_by_request(parts, model) < share_by_execution(parts, model)
    queue_us = mean_queue_us(parts)
    assert queue_us > 0
    assert wanted_replicas(3, queue_us, target_us=queue_us / 2.5) == 8
