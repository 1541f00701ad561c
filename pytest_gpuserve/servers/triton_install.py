"""Finds the Triton in nvidia-pytriton's wheel, and checks the needs of its Python backend."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.builds.interpreter import query_interpreter
from pytest_gpuserve.errors import ServerFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.servers.base import Site

PACKAGE: Final = "nvidia-pytriton==0.7.0"

# Neither pytriton nor numpy is imported: both are slow, and pytriton changes the variables of its process.
_FACTS: Final = """
import importlib.metadata, os, sysconfig
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
answer = {
    "executable": sys.executable,
    "base_prefix": sys.base_prefix,
    "version": "%d.%d" % sys.version_info[:2],
    "library_folder": sysconfig.get_config_var("LIBDIR") or "",
    "platform": sysconfig.get_config_var("MULTIARCH") or "",
    "shared": bool(sysconfig.get_config_var("Py_ENABLE_SHARED")),
    "pytriton": version("nvidia-pytriton"),
    "numpy": version("numpy"),
}
if answer["pytriton"]:
    package = importlib.metadata.distribution("nvidia-pytriton")
    for name, path in (("server", "pytriton/tritonserver"), ("libraries", "nvidia_pytriton.libs")):
        answer[name] = os.path.abspath(str(package.locate_file(path)))
"""


@dataclass(frozen=True)
class TritonInstall:
    """A Triton, and the interpreter that runs its Python models.

    Args:
        programs: The folder with its ``python3``.
        folder: The server's folder, with ``bin``, ``backends`` and ``python_backend_stubs``.
        stub: The program of a Python model's process, for that version of Python.
        library: The interpreter's libpython.
        libraries: The folder of the wheel's own libraries.
        version: Version of nvidia-pytriton.
    """

    programs: Path
    folder: Path
    stub: Path
    library: Path
    libraries: Path
    version: str

    @property
    def server(self) -> Path:
        """The server's program."""
        return self.folder / "bin" / "tritonserver"

    def write_backends(self, site: Site, *, searched: str) -> Path:
        """Link the Python backend and the stub into a folder of the start, and return the ``backends`` folder.

        Args:
            site: Place of the start.
            searched: Its ``PYTHONPATH``. The stub ignores it, unlike ``python``. So the first module that the stub
                imports adds it to the models' ``sys.path``.
        """
        backend = site.folder / "backends" / "python"
        backend.mkdir(parents=True)
        source = self.folder / "backends" / "python"
        (backend / self.stub.name).symlink_to(self.stub)
        for file in source.iterdir():
            if file.is_file() and not (searched and file.name == _UTILITIES):
                (backend / file.name).symlink_to(file)
        if searched:
            entries = [entry for entry in searched.split(os.pathsep) if entry]
            (backend / _UTILITIES).write_text(_SEARCHING.format(entries=entries, file=str(source / _UTILITIES)))
        return backend.parent

    def link_library(self, site: Site) -> Path:
        """Link libpython into a folder of its own in the start's folder, and return that.

        libpython's own folder is often one of the system. Its other libraries would then precede those of the models'
        packages, such as torch's cuDNN.
        """
        folder = site.folder / "libpython"
        folder.mkdir(parents=True)
        (folder / self.library.name).symlink_to(self.library)
        return folder

    def environment(self, variables: Mapping[str, str], library: Path) -> dict[str, str]:
        """Variables that let the stub find its interpreter's library and packages, on top of others.

        The stub takes the packages of the first ``python3`` on the ``PATH``. Its libpython must be of the same build,
        so that folder comes first if several are installed.

        Args:
            variables: All variables of the server, including inherited ones.
            library: The folder of libpython.
        """
        libraries = (library, self.libraries, variables.get("LD_LIBRARY_PATH", ""))
        return {
            "PATH": os.pathsep.join((str(self.programs), variables.get("PATH", os.defpath))),
            "LD_LIBRARY_PATH": os.pathsep.join(str(entry) for entry in libraries if str(entry)),
        }


_UTILITIES: Final = "triton_python_backend_utils.py"

_SEARCHING: Final = """\
import os, sys
sys.path[1:1] = [os.path.abspath(entry) for entry in {entries!r}]
__file__ = {file!r}
with open(__file__, encoding="utf-8") as _file:
    exec(compile(_file.read(), __file__, "exec"))
"""


@lru_cache
def find_triton(python: str) -> TritonInstall:
    """Find an interpreter's Triton; cached for each interpreter.

    Args:
        python: The interpreter, an absolute path.

    Raises:
        ServerFailed: The interpreter has no nvidia-pytriton, or one that does not work with it; the text has a remedy.
    """
    facts = query_interpreter(python, _FACTS, os.environ, Path.cwd(), what="its Triton")
    version = facts["version"]
    if not facts["pytriton"]:
        raise ServerFailed(
            "the interpreter has no Triton",
            found="nvidia-pytriton, whose wheel carries one, is not installed",
            looked=[python],
            remedies=[
                f"{python} -m pip install {PACKAGE}",
                "or name an interpreter that has it: python=...",
                "or name the program of another Triton: server=...",
            ],
        )
    folder = Path(facts["server"])
    stubs = sorted(
        (stub.parent.name for stub in folder.glob("python_backend_stubs/*/triton_python_backend_stub")),
        key=lambda name: [int(part) for part in name.split(".") if part.isdigit()],
    )
    if version not in stubs:
        raise ServerFailed(
            f"Triton's Python backend was not built for Python {version}",
            found=f"the backend exists for {', '.join(stubs)}" if stubs else "the backend exists for no version",
            looked=[python, str(folder / "python_backend_stubs")],
            remedies=["name an interpreter of one of these versions that has nvidia-pytriton: python=..."],
        )
    _check_numpy(python, facts["numpy"])
    return TritonInstall(
        programs=_programs(python, facts),
        folder=folder,
        stub=folder / "python_backend_stubs" / version / "triton_python_backend_stub",
        library=_library(python, facts),
        libraries=Path(facts["libraries"]),
        version=facts["pytriton"],
    )


def _check_numpy(python: str, version: str | None) -> None:
    """Check for numpy 1, whose layout of arrays the backend reads: with 2, outputs are empty, and the status is 200."""
    if version is not None and version.partition(".")[0] in {"0", "1"}:
        return
    raise ServerFailed(
        "Triton's Python backend was built for numpy below 2",
        found=f"numpy {version}" if version else "no numpy",
        looked=[python],
        remedies=[f"{python} -m pip install 'numpy<2'", "or name an interpreter that has it: python=..."],
    )


def _programs(python: str, facts: Mapping[str, Any]) -> Path:
    """The folder of the interpreter, in which ``python3`` must be the interpreter itself."""
    executable = Path(facts["executable"])
    named = executable.parent / "python3"
    if named.exists() and named.resolve() == executable.resolve():
        return executable.parent
    raise ServerFailed(
        "Triton's Python backend looks for a `python3`, and would find another one",
        found=f"{named} is {named.resolve()}" if named.exists() else f"there is no {named}",
        looked=[python],
        remedies=[f"make a virtual environment, and name its interpreter: {python} -m venv .venv; python=..."],
    )


def _library(python: str, facts: Mapping[str, Any]) -> Path:
    """The interpreter's libpython."""
    name = f"libpython{facts['version']}.so.1.0"
    base = Path(facts["base_prefix"]) / "lib"
    folders = [Path(facts["library_folder"]), base]
    places = [place for folder in folders for place in (folder, folder / facts["platform"])]
    for place in dict.fromkeys(places):
        if (place / name).is_file():
            return place / name
    built = (
        "the interpreter was built without --enable-shared" if not facts["shared"] else "its library is not installed"
    )
    raise ServerFailed(
        f"Triton's Python backend needs {name}, but the interpreter does not have it",
        found=built,
        looked=[python, *dict.fromkeys(str(place / name) for place in places)],
        remedies=[
            f"on Debian or Ubuntu, for the system's Python: apt-get install libpython{facts['version']}",
            "with pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install ...",
            "name an interpreter that was built with --enable-shared: python=...",
        ],
    )
