"""A Ray cluster is looked at before a load, and whatever is wrong with it is told before a server is started."""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.ray import check
from pytest_gpuserve.load.ray.address import ClusterAddress
from pytest_gpuserve.load.ray.check import check_cluster, check_installed
from pytest_gpuserve.load.ray.cluster import Versions
from pytest_gpuserve.process.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTION = "--load-engine"

OURS = Versions(python="3.11.7", ray="2.60.0", package="1.2.3")


@pytest.fixture
def listening() -> Iterator[ClusterAddress]:
    """Something that listens, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield ClusterAddress("127.0.0.1", server.getsockname()[1])


def answering(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a script stand for the process that looks at a cluster."""
    monkeypatch.setattr(check, "module_command", lambda *_: [sys.executable, "-c", script])


def saying(monkeypatch: pytest.MonkeyPatch, **seen: object) -> None:
    """Let this have been seen of a cluster."""
    answering(monkeypatch, f"print({json.dumps(json.dumps(seen))})")


def test_nodes_of_other_versions_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, listening: ClusterAddress
) -> None:
    """Each of them, with both versions, and no other, and how to install ours; what is not told is no pass."""
    here = {"python": OURS.python, "ray": OURS.ray, "package": OURS.package}
    nodes: list[dict[str, object]] = [
        {"address": "10.0.0.0", "versions": here},
        {"address": "10.0.0.1", "versions": here},
    ]
    saying(monkeypatch, here=here, nodes=nodes)
    assert [node.address for node in check_cluster(listening, OPTION)] == ["10.0.0.0", "10.0.0.1"]
    nodes += [
        {"address": "10.0.0.2", "versions": {**here, "package": "0.9"}},
        {"address": "10.0.0.3", "versions": None, "problem": "it died"},
        {"address": "10.0.0.4", "versions": None},
        {"address": "10.0.0.5", "versions": here, "problem": "odd"},
    ]
    saying(monkeypatch, here=here, nodes=nodes)
    with pytest.raises(UsageProblem) as caught:
        check_cluster(listening, OPTION)
    assert caught.value.found.splitlines() == [
        "10.0.0.2: pytest-gpuserve 0.9, here 1.2.3",
        "10.0.0.3: it died",
        "10.0.0.4: it did not tell its versions",
    ]
    assert any("pip install pytest-gpuserve==1.2.3" in text for text in caught.value.remedies)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('print(\'{"problem": "Version mismatch"}\')', ["Version mismatch"]),
        ("import sys; print('boom', file=sys.stderr); sys.exit(3)", ["status 3", "boom"]),
        ("import os, signal; os.kill(os.getpid(), signal.SIGABRT)", ["status -6"]),
        ("print('welcome to Ray')", ["status 0"]),
        ("", ["status 0"]),
        ("import sys; print('a\\n\\x1b[31mb', file=sys.stderr); sys.exit(1)", [r"\x1b[31mb"]),
    ],
)
def test_a_cluster_that_cannot_be_joined_is_refused(
    monkeypatch: pytest.MonkeyPatch, listening: ClusterAddress, script: str, words: list[str]
) -> None:
    """Whatever the process that looks at it does: its own words in one line, the address and what helps."""
    answering(monkeypatch, script)
    with pytest.raises(UsageProblem) as caught:
        check_cluster(listening, OPTION)
    assert all(word in caught.value.found for word in words)
    assert caught.value.found.count("\n") == 0
    assert str(listening) in caught.value.summary
    assert any(f"{OPTION}=ray://127.0.0.1:10001" in text for text in caught.value.remedies)


def test_a_look_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch, listening: ClusterAddress) -> None:
    """Its process is ended."""
    answering(monkeypatch, "import time; time.sleep(600)")
    for name in ("LOAD_SECONDS", "JOIN_SECONDS", "NODES_SECONDS", "LEAVE_SECONDS"):
        monkeypatch.setattr(check, name, 0.1)
    with pytest.raises(UsageProblem, match="could not be joined"):
        check_cluster(listening, OPTION)


@pytest.mark.parametrize("by_client", [False, True])
def test_where_nobody_listens_nothing_is_started(monkeypatch: pytest.MonkeyPatch, *, by_client: bool) -> None:
    """The refusal names the address and the reason, or the resolver's words; Ray's library is not asked."""
    monkeypatch.setattr(check, "module_command", lambda *_: pytest.fail("it is not to be asked"))
    address = ClusterAddress("127.0.0.1", free_port(), by_client)
    with pytest.raises(UsageProblem, match="Connection refused") as caught:
        check_cluster(address, OPTION)
    assert str(address) in str(caught.value)
    with pytest.raises(UsageProblem, match="could not be joined") as caught:
        check_cluster(ClusterAddress("no-such-host.invalid", 6379, by_client), OPTION)
    assert caught.value.found


@pytest.mark.parametrize("spec", [None, ModuleSpec("ray", None)])
def test_a_missing_library_is_told_with_the_extra(monkeypatch: pytest.MonkeyPatch, spec: ModuleSpec | None) -> None:
    """Also where a folder of that name lies about."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(UsageProblem) as caught:
        check_installed(OPTION)
    assert "pip install 'pytest-gpuserve[ray]'" in caught.value.remedies
