"""A remote server is loaded and left as it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.builds.relocation import Relocation
from pytest_gpuserve.errors import NotInRevision, ServerFailed, UsageProblem
from pytest_gpuserve.process.ports import free_port, is_here
from pytest_gpuserve.servers.command import CommandServer
from pytest_gpuserve.servers.instance import Instance
from pytest_gpuserve.servers.metric_names import MetricNames
from pytest_gpuserve.verdict.reason import ReasonKind
from tests.fakes.children.toolkit import HERE
from tests.fakes.http_server import BODY, make_certificates, serving
from tests.servers.deployments import FACTORY, UNTYPED, Starts, loaded
from tests.support.builders import said


@pytest.fixture(scope="module")
def somebody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """A running server, for all tests that leave it as it is."""
    folder = tmp_path_factory.mktemp("somebody")
    kind = CommandServer(("{python}", str(HERE / "model_server.py"), "{port}"), folder, "here", sys.executable)
    with Starts(folder / "log").handle(kind).post("/infer", body=b"fox").started() as instance:
        yield instance


def test_nobody_there_is_told() -> None:
    """The error at the deadline has the last observation."""
    remote = FACTORY.remote(f"http://127.0.0.1:{free_port()}", start_timeout=0.5)
    with pytest.raises(ServerFailed, match="was not ready in") as caught, remote.get("/").started():
        pass
    assert "Connection refused" in caught.value.found
    assert "start_timeout=1" in str(caught.value)


def test_counters_that_cannot_be_reached_are_told(somebody: Instance) -> None:
    """Named counters that are missing are an error, not a run without a ratio."""
    names = MetricNames(items="nv_count", batches="nv_exec")
    remote = FACTORY.remote(f"http://127.0.0.1:{somebody.site.port}", counters=names)
    _, (problem,), _ = loaded(remote.post("/infer", body=b"fox", expect=b"FOX"))
    assert problem.kind is ReasonKind.SERVER_FAILED
    assert "no metric nv_count" in problem.text
    assert "items_total" in problem.text


def test_somebody_elses_machine_has_no_processes_here(somebody: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local listener on a remote server's port does not belong to it, so its work disturbs the measurement.

    The loopback is here; an example's address (RFC 5737) and an unknown name are not.
    """
    remote = FACTORY.remote(f"http://127.0.0.1:{somebody.site.port}").post("/infer", body=b"fox")
    hosts = ("localhost", "127.0.0.9", "192.0.2.1", "nobody.invalid")
    assert [is_here(host) for host in hosts] == [True, True, False, False]
    monkeypatch.setattr("psutil.net_if_addrs", dict)
    with remote.started() as instance:
        assert instance.members()
    monkeypatch.setattr("pytest_gpuserve.servers.remote.is_here", lambda _: False)
    with remote.started() as instance:
        assert not instance.members()


def test_a_certificate_is_checked(tmp_path: Path) -> None:
    """An unknown authority is refused before the load; ``ca_file=`` makes it known."""
    certificates = make_certificates(tmp_path)
    with serving(certificate=certificates.server_file) as server:
        url = f"https://localhost:{server.port}"
        with pytest.raises(ServerFailed, match="not to be trusted") as caught, FACTORY.remote(url).get("/ok").started():
            pass
        assert "ca_file=" in str(caught.value)
        trusted = FACTORY.remote(url, ca_file=certificates.ca_file)
        start, problems, _ = loaded(trusted.get("/ok?ms=20", expect=BODY))
        assert not [text for text in said(problems) if "tls" in text or "errors" in text]
        assert start.total.requests > 100


def test_a_path_to_no_certificates_is_told(tmp_path: Path) -> None:
    """A missing ``ca_file=`` is an error that names the path, before any request."""
    remote = FACTORY.remote("https://127.0.0.1:1", ca_file=tmp_path / "nothing.pem")
    with pytest.raises(UsageProblem, match="cannot be read") as caught, remote.get("/").started():
        pass
    assert str(tmp_path / "nothing.pem") in caught.value.looked


def test_it_is_the_same_on_both_sides(tmp_path: Path) -> None:
    """A remote server cannot be compared with a revision, and the error names ``duel``."""
    with pytest.raises(NotInRevision, match="same in both builds") as caught:
        FACTORY.remote("http://127.0.0.1:1").kind.relocated(Relocation(tmp_path))
    assert "duel(" in caught.value.remedies[0]


def refusal(url: object, **arguments: object) -> str:
    """The text of a refusal."""
    with pytest.raises(UsageProblem) as caught:
        UNTYPED.remote(url, **arguments)
    return str(caught.value)


@settings(deadline=None)
@given(
    before=st.text(st.characters(codec="ascii", exclude_characters=" \n\t"), max_size=8),
    after=st.text(st.characters(codec="ascii", exclude_characters=" \n\t"), max_size=8),
    scheme=st.sampled_from(["http://", "https://", "", "grpc://", "http:/"]),
)
def test_no_password_of_a_url_is_shown(before: str, after: str, scheme: str) -> None:
    """Whatever else is wrong with a URL, neither its password nor its query is shown."""
    secret = "hunter2secret"
    for url in (f"{scheme}me:{before}{secret}{after}@h:1", f"{scheme}h:1/?{secret}{after}"):
        assert secret not in refusal(url)
