"""Triton's adapter without a Triton: its command line, what it is compared by, its other side, and where it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuserve.builds.relocation import Relocation
from pytest_gpuserve.errors import NotInRevision, ServerFailed, UsageProblem
from pytest_gpuserve.servers import triton as adapter
from pytest_gpuserve.servers.base import Site
from pytest_gpuserve.servers.triton import Triton
from pytest_gpuserve.servers.triton_install import TritonInstall, find_triton
from tests.servers.deployments import FACTORY, write_model
from tests.support.plain_git import git

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


# -- where Triton is

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


NO_LIBRARY = [
    f"needs libpython{VERSION}.so.1.0",
    f"apt-get install libpython{VERSION}",
    "{0}/base/lib/x86_64-linux-gnu",
]
"""Words of the error without a shared libpython, with the places that were searched."""


@pytest.fixture
def facts(tmp_path: Path) -> dict[str, Any]:
    """Facts of an interpreter that has everything."""
    server = tmp_path / "packages" / "pytriton" / "tritonserver"
    for file in ("backends/python/libtriton_python.so", "backends/python/triton_python_backend_utils.py"):
        (server / file).parent.mkdir(parents=True, exist_ok=True)
        (server / file).write_text("NAME = __file__\n")
    for version in ("3.8", VERSION):
        stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
        stub.parent.mkdir(parents=True)
        stub.write_text("#!/bin/sh\nexit 1\n")
        stub.chmod(0o755)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / f"libpython{VERSION}.so.1.0").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to("python")
    return {
        "executable": str(tmp_path / "bin" / "python"),
        "base_prefix": str(tmp_path / "base"),
        "version": VERSION,
        "library_folder": str(tmp_path / "lib"),
        "platform": "x86_64-linux-gnu",
        "shared": True,
        "pytriton": "0.7.0",
        "numpy": "1.26.4",
        "server": str(server),
        "libraries": str(tmp_path / "packages" / "nvidia_pytriton.libs"),
    }


def interpreter(folder: Path, facts: dict[str, Any]) -> str:
    """A program that reports these facts."""
    program = folder / "bin" / "python"
    program.write_text(f"#!/bin/sh\necho noise\ncat <<'EOF'\n{json.dumps(facts)}\nEOF\n")
    program.chmod(0o755)
    return str(program)


def failure(folder: Path, facts: dict[str, Any]) -> str:
    """The error's text."""
    with pytest.raises(ServerFailed) as failed:
        find_triton(interpreter(folder, facts))
    return str(failed.value)


def test_the_stub_finds_its_interpreter_and_its_libpython_first(tmp_path: Path, facts: dict[str, Any]) -> None:
    """Nothing else of their folders comes before the models' own, nor has a path an empty entry, the working folder."""
    install = find_triton(interpreter(tmp_path, facts))
    (install.library.parent / "libcudnn.so.9").touch()
    library = install.link_library(Site(tmp_path / "site"))
    assert [file.resolve() for file in library.iterdir()] == [install.library]
    libraries = f"{library}:{tmp_path}/packages/nvidia_pytriton.libs"
    for given, found in (("/opt/lib", f"{libraries}:/opt/lib"), ("", libraries)):
        environment = install.environment({"PATH": "/usr/bin", "LD_LIBRARY_PATH": given}, library)
        assert environment == {"PATH": f"{tmp_path}/bin:/usr/bin", "LD_LIBRARY_PATH": found}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"pytriton": None}, ["{0}/bin/python -m pip install nvidia-pytriton==0.7.0", "python=...", "server=..."]),
        ({"version": "3.99"}, ["was not built for Python 3.99", f"the backend exists for 3.8, {VERSION}"]),
        # With numpy 2 Triton would answer 200 with nothing in it, so it is not started.
        ({"numpy": "2.1.0"}, ["found: numpy 2.1.0", "pip install 'numpy<2'"]),
        ({"numpy": ""}, ["found: no numpy", "pip install 'numpy<2'"]),
        ({"library_folder": "none", "shared": False}, [*NO_LIBRARY, "was built without --enable-shared"]),
        ({"library_folder": "none"}, [*NO_LIBRARY, "its library is not installed", "--enable-shared"]),
    ],
)
def test_what_is_missing_is_told(
    tmp_path: Path, facts: dict[str, Any], change: dict[str, object], told: list[str]
) -> None:
    """A missing package, stub, numpy or shared libpython is told with its remedy."""
    message = failure(tmp_path, {**facts, **change})
    assert all(words.format(tmp_path) in message for words in told), message


@pytest.mark.parametrize("place", ["base/lib", "base/lib/x86_64-linux-gnu", "none/x86_64-linux-gnu"])
def test_libpython_elsewhere(tmp_path: Path, facts: dict[str, Any], place: str) -> None:
    """The library may be in Debian's folder for the platform, or in one that a moved Python's builder had."""
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / f"libpython{VERSION}.so.1.0").touch()
    install = find_triton(interpreter(tmp_path, {**facts, "library_folder": str(tmp_path / "none")}))
    assert install.library == tmp_path / place / f"libpython{VERSION}.so.1.0"


def test_another_python3(tmp_path: Path, facts: dict[str, Any]) -> None:
    """The stub looks for `python3`; another interpreter of that name would bring its own packages, so it is refused."""
    python3 = tmp_path / "bin" / "python3"
    python3.unlink()
    assert f"there is no {python3}" in failure(tmp_path, facts)
    python3.symlink_to(sys.executable)
    assert "would find another one" in failure(tmp_path, facts)


def test_no_python(tmp_path: Path) -> None:
    """A program that is not an interpreter is told as that."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(ServerFailed, match="did not report its Triton\n  found: no\n"):
        find_triton(str(program))
    with pytest.raises(ServerFailed, match="No such file"):
        find_triton(str(tmp_path / "none"))
