"""What a server answered stands in errors without the secrets that it may repeat, wherever the text is cut."""

from __future__ import annotations

import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process.deadline import Deadline
from pytest_gpuserve.process.ready import HttpRequest, Patience, http_probe
from pytest_gpuserve.servers.base import Ask
from pytest_gpuserve.servers.instance import QUEUE_CHARACTERS, _Accept, verdict_on_status
from pytest_gpuserve.servers.metric_names import MetricNames
from pytest_gpuserve.servers.triton_api import ask_triton, read_configs
from tests.fakes.threads import in_a_thread
from tests.servers.pages import Pages

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "hf_abcdefghijkl"
PHRASE = "hf_correct hf_horse hf_staple"
"""A secret of several words: where it is cut, whole words of it are left."""

HEADERS = {"Authorization": f"Bearer {SECRET}"}
ASKED = Ask("POST", "/inference", b"", HEADERS)
UNHEADED = Ask("POST", "/inference", b"", {})

secret_in_either = pytest.mark.parametrize(
    ("ask", "known"), [(ASKED, {}), (UNHEADED, {"HF_TOKEN": SECRET})], ids=["headers", "variables"]
)
"""The request has the token among its headers, or the server among its variables."""


def bodies(most: int, secret: str = SECRET) -> Iterator[bytes]:
    """Answers with a secret at, across and behind the place at which a text of so many characters ends."""
    for before in range(most - len(secret) - 3, most + 1):
        yield b"x " * (before // 2) + b"y" * (before % 2) + secret.encode() + b" and more"


@pytest.fixture(scope="module")
def page() -> Iterator[Pages]:
    """A server of one page."""
    with in_a_thread(Pages()) as server:
        yield server


@contextmanager
def unsaid() -> Iterator[None]:
    """A failure whose text has nothing of the token."""
    with pytest.raises(ServerFailed) as caught:
        yield
    assert "hf_" not in str(caught.value)


def accept(ask: Ask, environment: dict[str, str]) -> _Accept:
    """Who judges the answers of a server with these variables; its model has only failed for long enough."""
    process: Any = SimpleNamespace(command=SimpleNamespace(env=environment), tail=lambda: "")
    kind: Any = SimpleNamespace(name="mosec")
    return _Accept(kind, ask, process, 1.0, [time.monotonic() - 1.0])


@pytest.mark.parametrize("headers", [HEADERS, {}], ids=["of the request", "of the server"])
def test_a_probe_that_is_not_content_tells_no_secret(page: Pages, headers: dict[str, str]) -> None:
    """Neither one that it sent, nor one of the server's variables; a short answer is shown whole."""
    page.status = 503
    known = {} if headers else {"HF_TOKEN": PHRASE}
    patience = Patience(Deadline.after(10.0))
    probe = http_probe("127.0.0.1", page.port, HttpRequest("/", headers=headers), patience=patience, environment=known)
    for page.body in bodies(200, SECRET if headers else PHRASE):
        seen = probe()
        assert seen is not None
        assert "answered status 503" in seen.reason
        assert "hf_" not in seen.reason
    page.body = b"loading\n"
    seen = probe()
    assert seen is not None
    assert seen.reason.endswith(r"body b'loading\n': status 200 is needed")


@secret_in_either
def test_a_status_is_told_without_secrets(ask: Ask, known: dict[str, str]) -> None:
    """Whether the model only fails, is still starting or refuses; by the variables of its own process."""
    for body in bodies(200):
        said = verdict_on_status("mosec", ask, 503, body, environment=known)
        assert said is not None
        assert "hf_" not in said
        with unsaid():
            verdict_on_status("mosec", ask, 404, body, environment=known)
        for status in (500, 404):
            with unsaid():
                accept(ask, known).http_status(status, body, "")
        assert "hf_" not in str(accept(ask, known).http_status(503, body, ""))
    # A worker's error may be a long one: a traceback.
    for body in bodies(QUEUE_CHARACTERS):
        with unsaid():
            accept(ask, known).queued(500, body, "")


def test_a_status_is_told_without_the_secrets_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a server that somebody else started no variables are known but ours."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    for body in bodies(200):
        assert "hf_" not in str(verdict_on_status("remote", UNHEADED, 503, body))


@pytest.mark.parametrize("headers", [HEADERS, None], ids=["of the request", "of the server"])
def test_triton_s_answer_is_told_without_secrets(
    page: Pages, headers: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is an error, one that is no JSON, and one that is JSON but no list of models."""
    if headers is None:
        monkeypatch.setenv("HF_TOKEN", SECRET)
    for body in bodies(200):
        for page.status in (500, 200):
            page.body = body
            with unsaid():
                ask_triton(page.site(), "/v2", headers=headers)
        if headers is None:
            page.body = b'["%s"]' % body
            with unsaid():
                read_configs(page.site())


def test_the_names_of_metrics_are_listed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a name is no name, and the half of a secret could not be masked by who knows it."""
    monkeypatch.setenv("A_TOKEN", "metric_0012_of_many")
    names = [f"metric_{number:04}_of_many" for number in range(100)]
    with pytest.raises(ServerFailed) as caught:
        MetricNames(items="items", batches="runs").read("".join(f"{name} 1\n" for name in names))
    listed = caught.value.found.removeprefix("100 others: ")
    assert listed.endswith(", …")
    shown = listed.removesuffix(", …").split(", ")
    assert shown == [*names[:12], "<A_TOKEN>", *names[13 : len(shown)]]
    assert 40 < len(shown) < len(names)
