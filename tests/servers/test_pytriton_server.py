"""A real pytriton whose app does not know of the test: the counts equal those of its models."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.load.kserve import Inference, decode_answer, http_request, tensors_of
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.measure.window import COMPUTE
from pytest_gpuserve.process.ready import Ask
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.base import Launch, Site
from pytest_gpuserve.servers.instance import Instance
from pytest_gpuserve.servers.pytriton import PyTriton
from pytest_gpuserve.servers.triton_api import Statistics, query_triton
from pytest_gpuserve.servers.triton_install import find_triton
from tests.fakes.children.toolkit import eventually
from tests.servers.deployments import Project, all_answered, counted, listening, owner_killed


@pytest.fixture(autouse=True, scope="module")
def _installed() -> None:
    np = pytest.importorskip("numpy")
    pytest.importorskip("pytriton.triton")
    if int(np.__version__.partition(".")[0]) >= 2:
        pytest.skip("pytriton needs numpy below 2")
    find_triton(sys.executable)


def request(model: str = "doubling") -> Request:
    """A request for twice 1.5."""
    import numpy as np

    x = np.array([[1.5]] if model == "doubling" else [1.5], dtype=np.float32)
    return http_request(Inference(model, tensors_of("input", {"x": x})))


def project_in(folder: Path) -> Project:
    """A project in an empty folder."""
    asked = request()
    ask = Ask(asked.method, asked.path, asked.body, asked.headers)
    return Project(folder, "pytriton_app.py", lambda app: PyTriton(app, "doubling"), ask)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project of its own."""
    return project_in(tmp_path)


def load(instance: Instance, asked: Request, users: int, each: int) -> None:
    """Send many at a time, each of which must be answered well."""
    for status, answer in all_answered(instance, asked, users=users, each=each):
        assert (status, decode_answer(answer)["y"].ravel().tolist()) == (200, [3.0])


def test_two_models_are_counted(project: Project) -> None:
    """Triton's own counts, which the app's token opens, tell a model that batches from one that cannot.

    The server listens at its site, and ignores the address, port and workspace of the app.
    """
    with project.running(max_batch_size=4, max_queue_delay_us=20_000, second=True, own_places=True) as instance:
        load(instance, request(), 6, 10)
        own = [size for size, _ in project.own_counts()]
        # The app binds it after the first one has answered.
        eventually(lambda: "other" in counted(instance).parts, "the second model is bound")
        load(instance, request("other"), 3, 3)
        found = counted(instance)
        assert (found.requests, found.items, found.batches) == (61, sum(own), len(own))
        assert found.batch_sizes == {str(size): own.count(size) for size in sorted(set(own))}
        assert found.batches < 61
        assert found.stages[COMPUTE].count == len(own)
        other = found.parts["other"]
        assert (other.requests, other.items, other.batch_sizes) == (9, 9, {"1": 9})
        assert [size for size, _ in project.own_counts()[len(own) :]] == [1] * 9
        settings = instance.settings
        assert (settings["max_batch_size"].used, settings["max_batch_size"].asked) == ("4", "4")
        assert not settings["max_queue_delay_us"].differs
        assert instance.process is not None
        commands = [" ".join(process.cmdline()) for process in instance.process.tree()]
        assert any("--allow-gpu-metrics False" in command for command in commands)
        expected = {("127.0.0.1", port) for port in instance.site.ports.values()}
        assert listening(instance.process.tree()) == expected
        facts = instance.site.folder / "pytriton" / "server.json"
        token = json.loads(facts.read_text())["token"]
        assert token
        assert token not in (project.folder / "log").read_text()
        assert facts.stat().st_mode & 0o077 == 0
        with pytest.raises(ServerFailed, match="status 403"):
            query_triton(instance.site, "/v2/models/stats", Statistics)
    assert not instance.site.folder.exists()
    assert not (project.folder / "workspace").exists()
    assert not list((Path.home() / ".cache" / "pytriton").glob("*"))


def test_the_stub_finds_its_own_libpython_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stub's own libpython precedes folders that LD_LIBRARY_PATH already names."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/others/lib")
    (tmp_path / "app.py").touch()
    site = Site(tmp_path / "site", {"http": 1, "grpc": 2, "metrics": 3})
    launch = PyTriton(App("pytriton_server", tmp_path / "app.py", "app.py"), "m").launch(site)
    assert isinstance(launch, Launch)
    assert launch.environment["LD_LIBRARY_PATH"] == f"{site.folder}/libpython:/others/lib"


def test_an_endpoint_on_all_addresses_is_refused(project: Project) -> None:
    """An app that asks for Vertex AI's endpoint does not start, and is told what to leave out."""
    with pytest.raises(ServerFailed, match="ended before it was ready") as caught, project.running(vertex=True):
        pass
    assert "leave out allow_vertex_ai" in caught.value.log_tail


def test_nothing_is_left_when_its_owner_is_killed(project: Project) -> None:
    """No process, folder of the start or of Triton, or shared memory is left."""
    # Triton itself heeds no TMPDIR.
    models = set(Path("/tmp").glob("folder*/1/pytriton*"))
    app, *others = owner_killed("tests.servers.test_pytriton_server", project.folder)
    assert len(others) >= 2
    # pytriton names its regions so.
    assert not list(Path("/dev/shm").glob(f"pytrtion{app}-*"))
    assert set(Path("/tmp").glob("folder*/1/pytriton*")) <= models
