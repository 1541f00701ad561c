"""What `remote_server` takes for several replicas, and what it refuses before anything is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.builds.relocation import Relocation
from pytest_gpuserve.errors import NotInRevision, ServerFailed, UsageProblem
from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.servers.metric_names import MetricNames
from pytest_gpuserve.servers.remote import RemoteServer, Replicas
from tests.servers.somebody import COUNTERS, FACTORY, UNTYPED

if TYPE_CHECKING:
    from pathlib import Path


ONE, TWO, THREE = "http://10.0.0.1:8000", "http://10.0.0.2:8000", "https://10.0.0.3"


def replicas(*urls: str, **arguments: Any) -> Replicas:  # noqa: ANN401 -- whatever `remote_server` takes
    """The kind of a deployment of these."""
    kind = UNTYPED.remote(list(urls), **arguments).kind
    assert isinstance(kind, Replicas)
    return kind


def refusal(url: object, **arguments: object) -> str:
    """What is said of it."""
    with pytest.raises(UsageProblem) as caught:
        UNTYPED.remote(url, **arguments)
    return str(caught.value)


# -- what they are


def test_a_list_of_one_is_that_one() -> None:
    """So that a suite may take its URLs from outside, and keeps its baseline."""
    assert FACTORY.remote([ONE]).kind == FACTORY.remote(ONE).kind
    assert type(FACTORY.remote((ONE,)).kind) is RemoteServer


def test_each_url_is_a_replica_with_the_options_of_all() -> None:
    """Some may speak TLS, whose certificates are those that were named; the others need none."""
    kind = replicas(ONE, TWO, THREE, ca_file="ca.pem", counters=COUNTERS, metrics_port=9090, grpc_port=8001, model="m")
    assert [(each.address, each.tls, bool(each.ca_file)) for each in kind.each()] == [
        ("10.0.0.1:8000", False, False),
        ("10.0.0.2:8000", False, False),
        ("10.0.0.3:443", True, True),
    ]
    assert {type(each) for each in kind.each()} == {RemoteServer}
    assert all(each.counters is COUNTERS for each in kind.each())
    assert {(each.metrics_port, each.grpc_port, each.default_model) for each in kind.each()} == {(9090, 8001, "m")}
    assert kind.ports == ("http", "grpc")
    # Those of one host have ports of their own.
    kind = replicas("http://h:1", "http://h:2", grpc_port=[11, 12], metrics_port=(21, 22))
    assert [(each.port, each.grpc_port, each.metrics_port) for each in kind.each()] == [(1, 11, 21), (2, 12, 22)]


def test_how_many_they_are_belongs_to_a_baseline_and_their_addresses_do_not() -> None:
    """Servers may move; three are another deployment than two, or than one, and encryption costs both sides time."""
    pair, moved, more = replicas(ONE, TWO), replicas("http://a:1", "http://b:2"), replicas(ONE, TWO, "http://c:3")
    assert pair.workload() == moved.workload() == {"server": "remote", "tls": "False", "replicas": "2"}
    assert more.workload()["replicas"] == "3"
    assert "replicas" not in FACTORY.remote(ONE).kind.workload()
    assert pair.information() == {"addresses": "10.0.0.1:8000, 10.0.0.2:8000"}
    assert replicas(ONE, THREE).workload()["tls"] == "of some"
    assert replicas("https://a", "https://b").workload()["tls"] == "True"


def test_what_several_cannot_have_is_told(tmp_path: Path) -> None:
    """Another revision of the code has no others; and only the first would know a memory that is shared."""
    with pytest.raises(NotInRevision, match=r"10\.0\.0\.1:8000, 10\.0\.0\.2:8000 is the same on both sides"):
        replicas(ONE, TWO).relocated(Relocation(tmp_path))
    pytest.importorskip("numpy")
    server = FACTORY.remote(["http://127.0.0.1:1", "http://127.0.0.1:2"], model="m")
    with pytest.raises(UsageProblem, match="several replicas have no memory in common"):
        server.infer({"x": [[1.0]]}, shared_memory={"y": 4})


# -- what is refused


@pytest.mark.parametrize(
    ("urls", "arguments", "words"),
    [
        ([], {}, "one URL at least"),
        ([ONE, ONE], {}, "10.0.0.1:8000 is named twice"),
        (["http://H:80", "https://h:80"], {}, "h:80 is named twice"),
        (["http://h", "http://h:80/"], {}, "h:80 is named twice"),
        ([ONE, "http://h/path"], {}, "'http://h/path'"),
        ([ONE, "nonsense"], {}, "'nonsense'"),
        ([ONE, 8000], {}, "found: a int"),
        ({ONE, TWO}, {}, "remote_server(a set) is no URL, and no list"),
        (b"http://h", {}, "a bytes"),
        (["http://h:1", "http://h:2"], {"grpc_port": 9}, "h:1 and h:2 cannot both speak gRPC at one port of h"),
        (["http://h:1", "http://h:2"], {"metrics_port": 9}, "metrics_port=[9, 10]"),
        ([ONE, TWO], {"grpc_port": [9, 0]}, "some of the replicas speak gRPC"),
        ([ONE, TWO], {"grpc_port": [9]}, "one for each of 2 URLs"),
        ([ONE, TWO], {"grpc_port": "8001"}, "not '8001'"),
        ([ONE, TWO], {"metrics_port": [9, "10"]}, "not '10'"),
        ([ONE, TWO], {"grpc_port": True}, "not True"),
        (ONE, {"grpc_port": [8001, 8002]}, "one for each of 1 URL"),
        ([ONE, TWO], {"ca_file": "ca.pem"}, "without TLS no certificate is looked at"),
    ],
)
def test_what_cannot_be_loaded_together_is_told(urls: object, arguments: dict[str, object], words: str) -> None:
    """Before anything is asked; with what would do."""
    assert words in refusal(urls, **arguments)


@settings(deadline=None)
@given(
    before=st.text(st.characters(codec="ascii", exclude_characters=" \n\t"), max_size=8),
    after=st.text(st.characters(codec="ascii", exclude_characters=" \n\t"), max_size=8),
    scheme=st.sampled_from(["http://", "https://", "", "grpc://", "http:/"]),
)
def test_no_password_of_a_url_is_shown(before: str, after: str, scheme: str) -> None:
    """Whatever signs it is made of, and wherever the URL is wrong besides; a query may be a secret too."""
    secret = "hunter2secret"
    for url in (f"{scheme}me:{before}{secret}{after}@h:1", f"{scheme}h:1/?{secret}{after}"):
        for urls in (url, [ONE, url]):
            assert secret not in refusal(urls)


# -- their counters


def fetched(readings: dict[int, Counters | ServerFailed], monkeypatch: pytest.MonkeyPatch) -> Counters:
    """What is read of replicas on one host that say this, by their port."""

    def fetch(_: MetricNames, port: int, **__: object) -> Counters:
        said = readings[port]
        if isinstance(said, ServerFailed):
            raise said
        return said

    monkeypatch.setattr(MetricNames, "fetch", fetch)
    kind = replicas(*(f"http://h:{port}" for port in readings), counters=COUNTERS)
    found = kind.read_counters(kind.site())
    assert found is not None
    return found


def test_counters_are_added_up_and_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole is the sum, waiting requests too; each replica's own are a part by its address."""
    one = Counters(items=10, batches=5, batch_sizes={"2": 5}, requests=9, pending=1)
    two = Counters(items=4, batches=1, batch_sizes={"4": 1}, requests=3, pending=2)
    assert fetched({1: one, 2: two}, monkeypatch) == Counters(
        items=14,
        batches=6,
        batch_sizes={"2": 5, "4": 1},
        requests=12,
        pending=3,
        parts={"h:1": one, "h:2": two},
    )


def test_what_one_does_not_tell_is_not_known_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown is no zero; of several alike one has to know which cannot be read. Without names there are none."""
    one = Counters(items=1, batches=1)
    found = fetched({1: Counters(items=1, batches=1, requests=1, pending=1), 2: one}, monkeypatch)
    assert (found.requests, found.pending) == (None, None)
    with pytest.raises(ServerFailed, match="replica h:2: no answer"):
        fetched({1: one, 2: ServerFailed("no answer")}, monkeypatch)
    kind = replicas(ONE, TWO)
    assert kind.read_counters(kind.site()) is None
