"""Ports are free, each is claimed once, and none is one that the kernel gives to connections."""

from __future__ import annotations

import multiprocessing
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process import ports as module
from pytest_gpuserve.process.ports import claimed_ports, free_port

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from pathlib import Path


def claim(answers: Queue[list[int]]) -> None:
    """Claim one port of those that are left."""
    with claimed_ports(1) as ports:
        answers.put(ports)


def few(monkeypatch: pytest.MonkeyPatch, count: int) -> list[int]:
    """Let there be so many candidates only, which are free."""
    with claimed_ports(count) as candidates:
        monkeypatch.setattr(module, "_candidates", lambda: iter(candidates))
    return candidates


def test_a_claimed_port_is_given_to_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one of two ports is claimed, without a listener, another process gets the other one."""
    candidates = few(monkeypatch, 2)
    context = multiprocessing.get_context("fork")
    answers: Queue[list[int]] = context.Queue()
    with claimed_ports(1) as claimed:
        child = context.Process(target=claim, args=(answers,))
        child.start()
        got = answers.get(timeout=30)
        child.join()
    assert [*claimed, *got] == candidates


def test_a_port_is_free_again_after_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same port can be claimed twice, one after the other; while it is claimed it cannot, and the error counts."""
    candidates = few(monkeypatch, 1)
    for _ in range(2):
        with claimed_ports(1) as ports:
            assert ports == candidates
            with pytest.raises(ServerFailed, match="0 of the ports from 15000 on are free"), claimed_ports(2):
                pass


def test_a_port_where_somebody_listens_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener on the first candidate makes it the second."""
    candidates = few(monkeypatch, 2)
    with socket.create_server(("127.0.0.1", candidates[0])):
        assert free_port() == candidates[1]


def test_no_port_is_one_that_an_outgoing_connection_may_get(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ports lie below the kernel's range if any are free there; if the range covers all, ports are still found."""
    file = tmp_path / "range"
    monkeypatch.setattr(module, "_EPHEMERAL", file)
    for text, low, high in [("15010\t60999\n", 15_000, 15_010), ("1024 65535", 15_000, 65_536), ("?", 15_000, 32_768)]:
        file.write_text(text)
        with ExitStack() as stack:
            (port,) = stack.enter_context(claimed_ports(1))
            assert low <= port < high
