"""Finding Triton: an error names what an interpreter lacks, and the remedy, before anything is started."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.servers.base import Site
from pytest_gpuserve.servers.triton_install import find_triton

if TYPE_CHECKING:
    from pathlib import Path

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


def test_all_is_there(tmp_path: Path, facts: dict[str, Any]) -> None:
    """Everything is found, and the stub's variables begin with the interpreter and its library alone."""
    install = find_triton(interpreter(tmp_path, facts))
    assert (install.version, install.stub.parent.name) == ("0.7.0", VERSION)
    (install.library.parent / "libcudnn.so.9").touch()
    library = install.link_library(Site(tmp_path / "site"))
    assert [file.resolve() for file in library.iterdir()] == [install.library]
    environment = install.environment({"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/opt/lib"}, library)
    assert environment == {
        "PATH": f"{tmp_path}/bin:/usr/bin",
        "LD_LIBRARY_PATH": f"{library}:{tmp_path}/packages/nvidia_pytriton.libs:/opt/lib",
    }
    assert not install.environment({}, library)["LD_LIBRARY_PATH"].endswith(os.pathsep)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"pytriton": None},
            ["{0}/bin/python -m pip install nvidia-pytriton==0.7.0", "python=...", "server=..."],
        ),
        ({"version": "3.99"}, ["was not built for Python 3.99", f"the backend exists for 3.8, {VERSION}"]),
        # With numpy 2 Triton would answer 200 with nothing in it, so it is not started.
        ({"numpy": "2.1.0"}, ["found: numpy 2.1.0", "pip install 'numpy<2'"]),
        ({"numpy": None}, ["found: no numpy", "pip install 'numpy<2'"]),
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
