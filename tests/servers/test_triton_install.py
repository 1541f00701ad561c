"""Finding Triton: what an interpreter lacks is told with what helps, before anything is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.servers.base import Site
from pytest_gpuserve.servers.triton_install import find_triton
from tests.servers.triton_server import triton_python

if TYPE_CHECKING:
    from pathlib import Path

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def facts(tmp_path: Path) -> dict[str, Any]:
    """What an interpreter says that has all that is needed."""
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
    """A program that says this when it is asked."""
    program = folder / "bin" / "python"
    program.write_text(f"#!/bin/sh\necho noise\ncat <<'EOF'\n{json.dumps(facts)}\nEOF\n")
    program.chmod(0o755)
    return str(program)


def failure(folder: Path, facts: dict[str, Any]) -> str:
    """The error's text."""
    with pytest.raises(ServerFailed) as failed:
        find_triton(interpreter(folder, facts))
    return str(failed.value)


def test_all_is_there(tmp_path: Path, facts: dict[str, Any]) -> None:
    """What is needed is found, and the stub's variables put the interpreter and its library first."""
    install = find_triton(interpreter(tmp_path, facts))
    assert (install.version, install.stub.parent.name) == ("0.7.0", VERSION)
    environment = install.environment({"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/opt/lib"})
    assert environment == {
        "PATH": f"{tmp_path}/bin:/usr/bin",
        "LD_LIBRARY_PATH": f"{tmp_path}/lib:{tmp_path}/packages/nvidia_pytriton.libs:/opt/lib",
    }
    assert not install.environment({})["LD_LIBRARY_PATH"].endswith(os.pathsep)


def test_no_package(tmp_path: Path, facts: dict[str, Any]) -> None:
    """Without nvidia-pytriton the command that installs it there is named, and both other ways."""
    message = failure(tmp_path, {**facts, "pytriton": None})
    assert f"{tmp_path}/bin/python -m pip install nvidia-pytriton==0.7.0" in message
    assert "python=..." in message
    assert "image=..." in message


def test_no_stub(tmp_path: Path, facts: dict[str, Any]) -> None:
    """A Python that the wheel has nothing for is told with those that it has."""
    message = failure(tmp_path, {**facts, "version": "3.99"})
    assert "was not built for Python 3.99" in message
    assert f"it is there for 3.8, {VERSION}" in message


@pytest.mark.parametrize(("numpy", "found"), [("2.1.0", "numpy 2.1.0"), (None, "no numpy"), ("", "no numpy")])
def test_wrong_numpy(tmp_path: Path, facts: dict[str, Any], numpy: str | None, found: str) -> None:
    """With numpy 2 Triton would answer 200 with nothing in it, so it is not started."""
    message = failure(tmp_path, {**facts, "numpy": numpy})
    assert f"found: {found}" in message
    assert "pip install 'numpy<2'" in message


@pytest.mark.parametrize(
    ("shared", "found"), [(False, "it was built without --enable-shared"), (True, "its library is not installed")]
)
def test_no_libpython(tmp_path: Path, facts: dict[str, Any], shared: bool, found: str) -> None:  # noqa: FBT001 -- a case
    """Without a shared libpython both ways to get one are named, and where it was looked for."""
    message = failure(tmp_path, {**facts, "library_folder": str(tmp_path / "none"), "shared": shared})
    assert f"needs libpython{VERSION}.so.1.0" in message
    assert found in message
    assert f"apt-get install libpython{VERSION}" in message
    assert "--enable-shared" in message
    assert str(tmp_path / "base" / "lib" / "x86_64-linux-gnu") in message


@pytest.mark.parametrize("place", ["base/lib", "base/lib/x86_64-linux-gnu", "none/x86_64-linux-gnu"])
def test_libpython_elsewhere(tmp_path: Path, facts: dict[str, Any], place: str) -> None:
    """Debian keeps it in a folder for the platform; a Python that was moved names a folder of its builder's."""
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / f"libpython{VERSION}.so.1.0").touch()
    install = find_triton(interpreter(tmp_path, {**facts, "library_folder": str(tmp_path / "none")}))
    assert install.python_libraries == tmp_path / place


def test_a_library_that_does_not_load(tmp_path: Path, facts: dict[str, Any]) -> None:
    """A stub that cannot be loaded is told with the loader's words: Triton itself would hang."""
    stub = tmp_path / "packages/pytriton/tritonserver/python_backend_stubs" / VERSION / "triton_python_backend_stub"
    stub.write_text("#!/bin/sh\necho 'error while loading shared libraries: libpython: file too short' >&2\nexit 127\n")
    message = failure(tmp_path, facts)
    assert "file too short" in message
    assert "--enable-shared" in message
    stub.unlink()
    stub.write_text("")
    assert "Permission denied" in failure(tmp_path, facts)


def test_another_python3(tmp_path: Path, facts: dict[str, Any]) -> None:
    """The stub looks for a `python3`: where that is another interpreter, its packages would be used."""
    (tmp_path / "bin" / "python3").unlink()
    assert f"there is no {tmp_path}/bin/python3" in failure(tmp_path, facts)
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    assert "would find another one" in failure(tmp_path, facts)


def test_no_python(tmp_path: Path) -> None:
    """What is no interpreter is told as that."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "python"
    program.write_text("#!/bin/sh\necho no >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(ServerFailed, match="could not be asked for its Triton\n  found: no\n"):
        find_triton(str(program))
    with pytest.raises(ServerFailed, match="No such file"):
        find_triton(str(tmp_path / "none"))


def test_this_interpreter_answers() -> None:
    """The real script runs in a real interpreter, and what it finds is there."""
    python = triton_python()
    install = find_triton(python)
    assert install.server.is_file()
    assert install.stub.is_file()
    assert list(install.python_libraries.glob("libpython3*.so.1.0"))
    assert find_triton(python) is install


def test_the_backend_is_put_together(tmp_path: Path, facts: dict[str, Any]) -> None:
    """Backend and stub are side by side; nothing of the installation is copied or changed."""
    install = find_triton(interpreter(tmp_path, facts))
    site = Site(tmp_path / "site")
    backends = install.write_backends(site, searched="")
    assert backends == site.folder / "backends"
    links = {link.name: link.resolve() for link in (backends / "python").iterdir() if link.is_symlink()}
    source = install.folder / "backends" / "python"
    assert links == {
        "triton_python_backend_stub": install.stub,
        "libtriton_python.so": source / "libtriton_python.so",
        "triton_python_backend_utils.py": source / "triton_python_backend_utils.py",
    }


def test_pythonpath_counts_for_models(tmp_path: Path, facts: dict[str, Any]) -> None:
    """The module that every model imports puts the PYTHONPATH where `python` does, and is Triton's own otherwise."""
    install = find_triton(interpreter(tmp_path, facts))
    library = tmp_path / "it's a library"
    library.mkdir()
    backend = install.write_backends(Site(tmp_path / "site"), searched=f"{library}::") / "python"
    script = "import sys; sys.path.insert(0, ''); import triton_python_backend_utils as u; print(sys.path[1], u.NAME)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({str(backend)!r}); {script}"],
        capture_output=True,
        text=True,
        check=True,
    )
    original = install.folder / "backends" / "python" / "triton_python_backend_utils.py"
    assert done.stdout.strip() == f"{library} {original}"
