"""Triton's adapter without a Triton: its command line, what it is compared by, and its other side."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.builds.relocation import Relocation
from pytest_gpuserve.errors import NotInRevision, ServerFailed, UsageProblem
from pytest_gpuserve.servers import triton as adapter
from pytest_gpuserve.servers.base import Site
from pytest_gpuserve.servers.triton import Triton
from pytest_gpuserve.servers.triton_install import TritonInstall
from tests.builds.conftest import only_this_git  # noqa: F401 -- a fixture for all tests here
from tests.servers.deployments import FACTORY
from tests.servers.triton_server import write_model
from tests.support.plain_git import git

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("tritonclient.grpc")

ENSEMBLE = """
name: "e" platform: "ensemble"
ensemble_scheduling { step { model_name: "a" } step { model_name: "b" } }
"""
PORTS = {"http": 1, "grpc": 2, "metrics": 3}


def fill(repository: Path, *names: str) -> Path:
    """A repository with these models."""
    for name in names:
        write_model(repository, f'name: "{name}" backend: "python"', {"model.py": "one = 1\n"})
    return repository


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two models."""
    return fill(tmp_path / "models", "a", "b")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TritonInstall:
    """An installation of nothing."""
    server = tmp_path / "tritonserver"
    (server / "backends" / "python").mkdir(parents=True)
    install = TritonInstall(tmp_path / "bin", server, server / "stub", tmp_path, tmp_path, "0.7.0")
    monkeypatch.setattr(adapter, "find_triton", lambda python: install)
    return install


@pytest.mark.parametrize(
    "given",
    [
        {"arguments": {"http_port": 8000}},
        {"extra": ("--http-port=8000",)},
        {"extra": ("--http-port", "8000")},
        {"extra": ("--http-addr=0.0.0.0",)},
        {"extra": ("--grpc_address=0.0.0.0",)},
        {"extra": ("--allow-vertex-ai=true",)},
        {"arguments": {"load_model": "x"}},
        {"extra": ("--backend-config=python,shm-region-prefix-name=mine",)},
    ],
)
def test_what_the_fixture_sets_is_refused(repository: Path, given: dict[str, Any]) -> None:
    """Ports, addresses and the like cannot be set beside ours, nor by a name cut short, as Triton takes it."""
    with pytest.raises(UsageProblem, match=r"triton_server sets .* itself"):
        Triton(repository, "models", **given)


@pytest.mark.parametrize(
    "given",
    [
        {"arguments": {"model_config_name": "big"}},
        {"extra": ("--model-config-name=big",)},
        {"extra": ("--model-config-name", "small", "--model-config-name", "big")},
    ],
)
def test_the_named_configuration_is_the_one_that_is_read(repository: Path, given: dict[str, Any]) -> None:
    """A named configuration that is an ensemble gets the requests."""
    (repository / "a" / "configs").mkdir()
    (repository / "a" / "configs" / "big.pbtxt").write_text(ENSEMBLE)
    assert Triton(repository, "models", **given).default_model == "a"
    assert Triton(repository, "models").default_model == ""


def test_what_is_not_there_is_told(repository: Path, tmp_path: Path) -> None:
    """A missing repository or model is an error where the server is described."""
    with pytest.raises(UsageProblem, match="the model repository"):
        FACTORY.triton(tmp_path / "none")
    with pytest.raises(UsageProblem, match=r"has no c, d\n  found: a, b"):
        Triton(repository, "models", models=("a", "c", "d"))


@pytest.mark.parametrize(
    ("text", "files", "starts"),
    [
        ('backend: "python"', ["1/x.py"], False),
        ("name: 'a'\n  backend : 'python'\n", ["1/x.py"], False),
        ('backend: "python"', ["1/w.bin", "2/model.py"], True),
        ('backend: "python"\ndefault_model_filename: "x.py"', ["1/x.py"], True),
        ('backend: "onnxruntime"', [], True),
        ("", [], True),
    ],
)
def test_missing_files(tmp_path: Path, installed: TritonInstall, text: str, files: list[str], *, starts: bool) -> None:
    """A Python model without code is told before the start; what other backends need is theirs."""
    models = tmp_path / "models"
    (models / "a").mkdir(parents=True)
    (models / "a" / "config.pbtxt").write_text(text)
    for name in files:
        (models / "a" / name).parent.mkdir(exist_ok=True)
        (models / "a" / name).touch()
    kind, site = Triton(models, "models"), Site(tmp_path / "site", PORTS)
    with nullcontext() if starts else pytest.raises(ServerFailed, match=rf"a has no code[\s\S]*{models}/a/1/model.py"):
        kind.launch(site)


def test_an_inference_is_for_the_ensemble(repository: Path) -> None:
    """Without a name it is for what is asked, the one model to load, the one ensemble, or the counted model."""
    assert Triton(repository, "models").default_model == ""
    assert Triton(repository, "models", model="a").default_model == "a"
    assert Triton(repository, "models", models=("b",)).default_model == "b"
    assert Triton(repository, "models", asked="a", model="b").default_model == "a"
    write_model(repository, ENSEMBLE)
    assert Triton(repository, "models", model="a").default_model == "e"


def test_the_workload_tells_no_secrets_and_no_places(repository: Path) -> None:
    """A workload names the repository as it is shown, and variables by their hashes."""
    kind = Triton(repository, "suites/models", models=("b", "a"), model="a", environment={"TOKEN": "secret"})
    workload = kind.workload()
    assert (workload["repository"], workload["models"], workload["counted"]) == ("suites/models", "a b", "a")
    assert workload["environment"].startswith("TOKEN=sha256:")
    assert str(repository) not in "".join(workload.values())
    assert workload != Triton(repository, "suites/models", models=("b", "a"), environment={"TOKEN": "x"}).workload()


def test_the_information_is_of_the_loaded_models_files(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file by its hash, large ones by size and time, many by one hash; a loaded ensemble brings its models in."""
    write_model(repository, ENSEMBLE.replace('step { model_name: "b" }', ""))
    monkeypatch.setattr("pytest_gpuserve.servers.triton_config.HASHED_BYTES", 1000)
    code = repository / "a" / "1"
    (code / "weights.bin").write_bytes(bytes(1001))
    (code / "__pycache__").mkdir()
    (code / "__pycache__" / "model.pyc").touch()
    kind = Triton(repository, "models", models=("e",))
    before = kind.information()
    assert sorted(before) == ["a/1/model.py", "a/1/weights.bin", "a/config.pbtxt", "e/config.pbtxt"]
    assert before["a/1/weights.bin"].startswith("1001 bytes, changed at ")
    (code / "model.py").write_text("two = 2\n")
    after = kind.information()
    assert {name for name in before if before[name] != after[name]} == {"a/1/model.py"}
    for number in range(40):
        (code / f"{number}.bin").write_text("x")
    before = kind.information()
    assert before["a/"].startswith("43 files, sha256:")
    (code / "7.bin").write_text("y")
    assert kind.information()["a/"] != before["a/"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a repository of a model."""
    top = tmp_path / "checkout"
    fill(top / "models", "a")
    git(top, "init", "-q")
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "one")
    return top


@pytest.fixture
def relocation(checkout: Path, tmp_path: Path) -> Relocation:
    """To a worktree of its commit."""
    git(checkout, "worktree", "add", "-q", "--detach", str(tmp_path / "worktree"))
    return Relocation(checkout, tmp_path / "worktree")


def test_the_other_side_has_its_own_models(
    checkout: Path, relocation: Relocation, tmp_path: Path, installed: TritonInstall
) -> None:
    """The other revision's code is served."""
    ours, there = checkout / "models", tmp_path / "worktree" / "models"
    (ours / "a" / "1" / "model.py").write_text("two = 2\n")
    kind = Triton(ours, "models")
    moved = kind.relocated(relocation)
    assert (moved.repository, moved.cwd) == (there, relocation.worktree)
    assert f"--model-repository={there}" in moved.launch(Site(tmp_path / "site", PORTS)).argv
    assert moved.information()["a/1/model.py"] != kind.information()["a/1/model.py"]


def test_what_cannot_be_compared_is_told(checkout: Path, relocation: Relocation, repository: Path) -> None:
    """A new model, and a new repository, have no other side; what lies outside would be compared with itself."""
    fill(checkout / "models", "new")
    with pytest.raises(NotInRevision, match="has no models with these models"):
        Triton(checkout / "models", "models", models=("new",)).relocated(relocation)
    fill(checkout / "other", "x")
    git(checkout, "add", ".")
    with pytest.raises(NotInRevision, match="has no other"):
        Triton(checkout / "other", "other").relocated(relocation)
    with pytest.raises(NotInRevision, match="would be the same in the other build"):
        Triton(repository, "models", python=sys.executable).relocated(relocation)
