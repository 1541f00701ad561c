"""The small server of the self-test, by real requests: what it does is what it says, and what its counters say."""

from __future__ import annotations

import ast
import http.client
import socket
import statistics
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

import pytest_gpuserve.selftest.server as server_module
from pytest_gpuserve.builds.relocation import Relocation
from pytest_gpuserve.errors import NotInRevision, ServerFailed
from pytest_gpuserve.measure.counters import Counters, counted_between
from pytest_gpuserve.measure.window import COMPUTE, FORMATION, QUEUE, SERVER
from pytest_gpuserve.selftest.server import INFER, PREFIX, WRONG_ANSWER, Options, turns_of
from pytest_gpuserve.selftest.trials import BuiltIn, counters_of
from pytest_gpuserve.servers.base import Ask, Site
from pytest_gpuserve.servers.instance import started
from pytest_gpuserve.servers.metric_names import MetricSample

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuserve.servers.instance import Instance

QUICK = Options(turns=1000, max_batch=4, max_wait_seconds=0.0)


@contextmanager
def running(options: Options, tmp_path: Path) -> Iterator[Instance]:
    """Run the server; to be ready it answers one request."""
    with started(
        BuiltIn(options),
        Ask("POST", INFER, b"ready", {}),
        environment={},
        log=tmp_path / "server.log",
        start_timeout_seconds=60,
    ) as instance:
        yield instance


def ask_at_once(port: int, bodies: Sequence[bytes], *, path: str = INFER) -> list[tuple[int, bytes]]:
    """Send requests at the same time, each on a connection of its own; status and body of each answer."""
    with ExitStack() as stack:
        connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=30) for _ in bodies]
        for connection in connections:
            stack.callback(connection.close)
            connection.connect()
        for connection, body in zip(connections, bodies, strict=True):
            connection.request("POST", path, body)
        answers = [connection.getresponse() for connection in connections]
        return [(answer.status, answer.read()) for answer in answers]


def connected(instance: Instance) -> socket.socket:
    """A connection to it."""
    return socket.create_connection(("127.0.0.1", instance.site.port), 30)


def counters(instance: Instance) -> Counters:
    """Its counters now."""
    found = instance.counters()
    assert found is not None
    return found


def test_counters_add_up(tmp_path: Path) -> None:
    """Every request is in one batch, every batch in one size, every stage is timed as often as it happened."""
    with running(QUICK, tmp_path) as instance:
        before = counters(instance)
        for _ in range(5):
            answers = ask_at_once(instance.site.port, [b"fox %d" % number for number in range(9)])
            assert answers == [(200, b"FOX %d" % number) for number in range(9)]
        after = counters(instance)
    assert before.items == before.batches == 1
    counted = counted_between(before, after)
    items, batches, stages = counted.items, counted.batches, counted.stages
    assert items == 45
    assert sum(after.batch_sizes.values()) == after.batches
    assert sum(int(size) * count for size, count in after.batch_sizes.items()) == after.items
    assert max(map(int, after.batch_sizes)) <= QUICK.max_batch
    timed = {SERVER: items, QUEUE: items, FORMATION: batches, COMPUTE: batches}
    assert {name: stage.count for name, stage in stages.items()} == timed
    assert 0 < stages[QUEUE].seconds < stages[SERVER].seconds
    assert stages[COMPUTE].seconds > 0


def test_a_batch_waits_until_it_is_full(tmp_path: Path) -> None:
    """Requests that come together go together; what is left over goes when the wait is over."""
    with running(replace(QUICK, max_wait_seconds=1.5), tmp_path) as instance:
        ask_at_once(instance.site.port, [b"a"] * 8)
        assert counters(instance).batch_sizes == {"1": 1, "4": 2}
        ask_at_once(instance.site.port, [b"a"] * 3)
        found = counters(instance)
    assert found.batch_sizes == {"1": 1, "3": 1, "4": 2}
    # Two lone batches waited for the time that they may, and the two full ones did not.
    assert 3.0 <= found.stages[FORMATION].seconds < 6.0


def test_every_so_many_batches_take_longer_and_answers_are_wrong(tmp_path: Path) -> None:
    """Neither more nor fewer; the tail is in the work, as the server's own counter sees it.

    The server ends with its block, and its port is free again.
    """
    options = replace(QUICK, turns=turns_of(0.005), tail_every=3, tail_factor=20.0, wrong_every=5)
    seconds, bodies = {}, {}
    with running(options, tmp_path) as instance:
        # The first request was the question whether the server is ready.
        for number in range(2, 21):
            before = counters(instance).stages[COMPUTE].seconds
            ((_, bodies[number]),) = ask_at_once(instance.site.port, [b"a"])
            seconds[number] = counters(instance).stages[COMPUTE].seconds - before
        assert instance.process is not None
        pid, port = instance.process.pid, instance.site.port
    tail = [taken for number, taken in seconds.items() if number % 3 == 0]
    assert min(tail) > 4 * statistics.median(taken for number, taken in seconds.items() if number % 3)
    wrong = {number: body for number, body in bodies.items() if body != b"A"}
    assert wrong == dict.fromkeys((5, 10, 15, 20), WRONG_ANSWER)
    assert not psutil.pid_exists(pid)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_connection_goes_on_in_pieces_and_in_heaps(tmp_path: Path) -> None:
    """Requests may come byte by byte or several at once, and another path is not found."""
    request = b"POST /infer HTTP/1.1\r\ncontent-LENGTH:  3\r\n\r\nabc"
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nABC"
    missing = b"HTTP/1.1 404 Not Found\r\n"
    with running(QUICK, tmp_path) as instance, connected(instance) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(len(request)):
            client.sendall(request[number : number + 1])
            if number > len(request) - 4:
                # Its answer to another connection says that it has read this one as far as it goes.
                counters(instance)
        assert receive(client, len(answer)) == answer
        client.sendall(3 * request)
        assert receive(client, 3 * len(answer)) == 3 * answer
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert receive(client, len(missing)) == missing
        assert [status for status, _ in ask_at_once(instance.site.port, [b""], path="/metrics")] == [404]


def receive(client: socket.socket, size: int) -> bytes:
    """Receive so many bytes."""
    data = b""
    while len(data) < size:
        part = client.recv(size - len(data))
        assert part
        data += part
    return data


def test_work_is_exact() -> None:
    """An injected slowdown is in the number of turns, to the turn; a tail multiplies it; turns are of this machine."""
    options = Options(turns=1000, slower=0.05, tail_every=4, tail_factor=3.0)
    assert [options.turns_of_batch(number) for number in (1, 2, 3, 4, 5, 8)] == [1050, 1050, 1050, 3150, 1050, 3150]
    assert Options(turns=1000).turns_of_batch(7) == 1000
    assert turns_of(0.0) == 1
    # Four times the time is four times the turns; others who take the machine meanwhile only make them fewer.
    longer, shorter = (max(turns_of(seconds) for _ in range(5)) for seconds in (0.02, 0.005))
    assert 0.5 < longer / (4 * shorter) < 2


def test_every_option_is_passed_on() -> None:
    """The command line names each of them with its value."""
    options = Options(7, 0.5, 3, 2.5, 9, 0.125, 11)
    words = "--port=1234 --turns=7 --slower=0.5 --tail-every=3 --tail-factor=2.5 --max-batch=9 --max-wait-seconds=0.125"
    argv = BuiltIn(options).launch(Site(Path("/"), {"http": 1234})).argv
    assert argv[-8:] == (*words.split(), "--wrong-every=11")


def test_the_server_imports_the_standard_library_alone() -> None:
    """It starts in a fraction of a second, whatever else is installed."""
    assert server_module.__file__ is not None
    tree = ast.parse(Path(server_module.__file__).read_text(encoding="utf-8"))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [name for name in names if name.startswith("pytest_gpuserve")]


def sample(name: str, value: float = 1.0, **labels: str) -> MetricSample:
    """One line of a scrape of it."""
    return MetricSample(f"{PREFIX}_{name}_total", labels, value)


@pytest.mark.parametrize(
    "more",
    [
        [],
        [sample("items")],
        [sample("items"), sample("batches"), sample("unheard_of", kind="a")],
        [sample("items"), sample("batches"), sample("stage_seconds", stage="queue")],
        [sample("items"), sample("batches"), sample("batch_size", size="1", worker="2")],
    ],
)
def test_counters_that_make_no_sense_are_told(more: list[MetricSample]) -> None:
    """What is missing is not zero, and what is new is not left out."""
    with pytest.raises(ServerFailed, match="make no sense"):
        counters_of(more)


def test_it_is_of_no_revision() -> None:
    """There is nothing to compare between two checkouts of a project."""
    kind = BuiltIn(QUICK)
    with pytest.raises(NotInRevision, match="a part of pytest-gpuserve"):
        kind.relocated(Relocation(Path("/project")))
    assert kind.workload() != BuiltIn(replace(QUICK, slower=0.1)).workload()
    assert kind.information() == {}
