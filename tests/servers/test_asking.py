"""A real server that dies or fails when it is asked once: the error says so, with its last words and no secrets."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.servers.command import CommandServer
from pytest_gpuserve.trial.asking import Refused
from tests.fakes.children.toolkit import HERE
from tests.servers.deployments import Starts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpuserve.trial.handle import Target

SECRETS = ("hf_abcdefghijkl", "mnopqrstuvwxyz")


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Target]:
    """A request to a server with these habits."""

    def target(*habits: str) -> Target:
        argv = ("{python}", str(HERE / "model_server.py"), "{port}", *habits)
        kind = CommandServer(
            argv, tmp_path, "here", sys.executable, health="/health", environment={"SOME_TOKEN": SECRETS[0]}
        )
        headers = {"Authorization": f"Bearer {SECRETS[1]}"}
        return Starts(tmp_path / "log").handle(kind).post("/infer", body=b"fox", expect=b"FOX", headers=headers)

    return target


def test_a_running_server_is_asked_again_and_again(make: Callable[..., Target]) -> None:
    """One start serves several questions, other ones than that which told that it is ready."""
    target = make()
    with target.started() as running:
        assert target.ask(running).body == b"FOX"
        assert target.server.post("/infer", body=b"dog").ask(running).body == b"DOG"


def test_it_dies_of_the_question(make: Callable[..., Target]) -> None:
    """The first request is that of the start; at the second it kills itself, which is told with its last words."""
    target = make("die=2", "says=about to load the weights")
    with target.started() as running, pytest.raises(ServerFailed, match="does not answer POST /infer") as caught:
        target.ask(running)
    assert caught.value.found == "it has ended: killed by SIGKILL"
    assert "about to load the weights" in caught.value.log_tail


def test_it_refuses_with_what_it_knows(make: Callable[..., Target]) -> None:
    """What it says of its variables and of the request's headers is masked in the error."""
    target = make("hollow=2")
    with target.started() as running, pytest.raises(Refused, match="status 503: no worker") as caught:
        target.ask(running)
    assert "<SOME_TOKEN> Bearer <Authorization>" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in SECRETS)
    assert caught.value.status == 503
