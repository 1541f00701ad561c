"""pytriton's adapter against an HTTP server that answers as its Triton does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.measure.counters import ServerSetting
from pytest_gpuserve.measure.window import COMPUTE, SERVER
from pytest_gpuserve.servers import pytriton
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.base import Argument, Site
from pytest_gpuserve.servers.inside.pytriton_app import Facts
from pytest_gpuserve.servers.pytriton import TOKEN_HEADER, PyTriton
from pytest_gpuserve.servers.triton_install import TritonInstall
from tests.fakes.threads import in_a_thread
from tests.servers.pages import Pages

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "only for its owner"


def time_of(count: int, milliseconds: int = 0) -> dict[str, int]:
    """A time in Triton's words."""
    return {"count": count, "ns": milliseconds * 1_000_000}


def statistics(name: str) -> dict[str, object]:
    """Twelve requests in one batch of eight and one of four, a millisecond each."""
    batch = {"compute_input": time_of(1), "compute_infer": time_of(1, 1), "compute_output": time_of(1)}
    return {
        "name": name,
        "version": "1",
        "inference_count": 12,
        "execution_count": 2,
        "inference_stats": {
            "success": time_of(12, 24),
            "fail": time_of(0),
            "queue": time_of(12, 6),
            "compute_input": time_of(12),
            "compute_infer": time_of(12, 12),
            "compute_output": time_of(12),
        },
        "batch_stats": [{"batch_size": size, **batch} for size in (8, 4)],
    }


CONFIG = {
    "max_batch_size": 8,
    "dynamic_batching": {"preferred_batch_size": [8], "max_queue_delay_microseconds": 2000},
    "instance_group": [{"kind": "KIND_CPU", "count": 1}],
}


@pytest.fixture(scope="module")
def web() -> Iterator[Pages]:
    """A server of pages, some of them for its owner alone."""
    with in_a_thread(Pages()) as server:
        server.token = (TOKEN_HEADER, TOKEN)
        yield server


@pytest.fixture
def site(web: Pages, tmp_path: Path) -> Site:
    """A start whose app has said what it is."""
    folder = tmp_path / "pytriton"
    folder.mkdir(mode=0o700)
    Facts("0.7.0", TOKEN, 1.5, 2.5).write(folder)
    web.pages = {
        "/v2": b'{"version": "2.51.0"}',
        "/v2/models/stats": json.dumps({"model_stats": [statistics("m"), statistics("n")]}).encode(),
        "/v2/models/m/config": json.dumps(CONFIG).encode(),
    }
    return Site(tmp_path, {"http": web.port, "grpc": 2, "metrics": 3})


def kind(tmp_path: Path, **arguments: Argument) -> PyTriton:
    """A server of an app that is not started."""
    app = tmp_path / "app.py"
    app.touch()
    return PyTriton(App("pytriton_server", app, "app.py", arguments), "m")


def test_executions_are_counted_with_the_apps_token(site: Site, tmp_path: Path) -> None:
    """Time of executions, not of requests; every model is a part, and one that is not there is named with them."""
    found = kind(tmp_path).read_counters(site)
    assert (found.items, found.batches, found.requests) == (12, 2, 12)
    assert found.stages[COMPUTE].seconds == pytest.approx(0.002)
    assert found.stages[SERVER].mean == pytest.approx(0.002)
    assert sorted(found.parts) == ["m", "n"]
    with pytest.raises(ServerFailed, match="no statistics of model x") as caught:
        PyTriton(kind(tmp_path).app, "x").read_counters(site)
    assert "m, n" in str(caught.value)


def test_the_token_is_for_its_owner_alone(site: Site, tmp_path: Path) -> None:
    """Nobody else can read its file; what Triton says to another one is shown, and the token is not."""
    assert (site.folder / "pytriton" / "server.json").stat().st_mode & 0o077 == 0
    Facts("0.7.0", "another", 1.5, None).write(tmp_path / "pytriton")
    with pytest.raises(ServerFailed, match="does not answer") as caught:
        kind(tmp_path).read_counters(site)
    assert "status 403" in str(caught.value)
    assert "another" not in str(caught.value)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(body=st.one_of(st.binary(max_size=40), st.recursive(st.none() | st.integers(), st.lists).map(json.dumps)))
def test_nonsense_is_a_typed_error(web: Pages, site: Site, tmp_path: Path, body: bytes | str) -> None:
    """Whatever Triton answers."""
    said = body.encode() if isinstance(body, str) else body
    web.pages = {**web.pages, "/v2/models/stats": said, "/v2/models/m/config": said}
    with pytest.raises(ServerFailed):
        kind(tmp_path).read_counters(site)
    with pytest.raises(ServerFailed):
        kind(tmp_path).read_settings(site)


def test_settings_are_what_triton_uses(site: Site, tmp_path: Path) -> None:
    """Beside what the app's arguments of these names ask for."""
    found = kind(tmp_path, max_batch_size=16, max_queue_delay_us=2000).read_settings(site)
    assert found["max_batch_size"] == ServerSetting("8", "16")
    assert found["max_queue_delay_us"] == ServerSetting("2000", "2000")
    assert found["instances"] == ServerSetting("1 x CPU")
    assert (found["triton"].used, found["pytriton"].used) == ("2.51.0", "0.7.0")


def test_cold_start_is_told_in_order(site: Site, tmp_path: Path) -> None:
    """What is not known yet is left out; an app that has not made its Triton, or elsewhere, is named."""
    assert list(kind(tmp_path).read_cold_start(site).items()) == [("import", 1.5), ("triton", 2.5)]
    Facts("0.7.0", None, 1.5).write(tmp_path / "pytriton")
    assert dict(kind(tmp_path).read_cold_start(site)) == {"import": 1.5}
    with pytest.raises(ServerFailed, match="does not say how it was set up"):
        kind(tmp_path).read_cold_start(Site(tmp_path / "elsewhere"))


def test_the_model_is_what_is_asked_for(tmp_path: Path) -> None:
    """Triton itself is ready before anything is bound; two models of one app are two workloads."""
    assert PyTriton(kind(tmp_path).app, "a b").health == "/v2/models/a%20b/ready"
    assert kind(tmp_path).workload()["model"] == "m"
    with pytest.raises(UsageProblem, match="model= is empty"):
        PyTriton(kind(tmp_path).app, "")


def test_the_app_is_started_with_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's own libpython comes before any other, and all three ports are given."""
    install = TritonInstall(
        "python", Path("/b"), Path("/t"), Path("/s"), Path("/own/libpython3.so"), Path("/l"), "0.7.0"
    )
    monkeypatch.setattr(pytriton, "find_triton", lambda python: install)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/others/lib")
    ports = {"http": 11, "grpc": 12, "metrics": 13}
    launch = kind(tmp_path, instances=2).launch(Site(tmp_path / "site", ports))
    assert launch.environment["LD_LIBRARY_PATH"] == f"{tmp_path}/site/libpython:/others/lib"
    assert {"--http=11", "--grpc=12", "--metrics=13", "--host=127.0.0.1"} <= set(launch.argv)
    assert launch.argv[-2:] == (str(tmp_path / "app.py"), "--instances=2")
