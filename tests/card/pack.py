"""``python -m tests.card.pack``: collects what a machine with a GPU and without a network lacks.

That is the last commit, and wheels in the versions of the environment that this runs in, compressed better.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import deque
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.process.command_line import refused, run_command
from tests.card.steps import MAIN, MANIFEST, PACK, REPOSITORY, ROOT, TRITON

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MIB: Final = 1 << 20

MOST_MIB: Final = 63.0
"""Bytes that travel to a lent machine, checkout and pack together; a little is left for an archive's own records."""

DEPTH: Final = 50
"""Commits that are packed: a baseline that one of them brought can be settled side by side."""

EXTRAS: Final = {MAIN: ("mosec", "litserve", "triton", "suites"), TRITON: ("pytriton",)}
"""Of each environment; the first has the package's own requirements, too."""

NOT_PACKED: Final = ("pytest-gpuserve[", "torch", "gguf", "xllamacpp")
"""They begin requirements that only name extras, that every such machine has, or that no step uses."""

OF_PYTHON: Final = re.compile(r"python_backend_stubs/(\d+\.\d+)/|\.libs/libpython3-[0-9a-f]+(\.\d+)\.so")
"""In Triton's wheel: programs for one version of Python each, and the library of one of them."""


def main(arguments: Sequence[str]) -> int:
    """Collect, tell, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.card.pack", description=__doc__)
    parser.add_argument("--python", required=True, metavar="X.Y", help="the machine's version")
    parser.add_argument("--there", type=Path, metavar="FILE", help="what the machine has: `pip freeze`, or names alone")
    given = parser.parse_args(arguments)
    listed = [line.split("==") for line in given.there.read_text(encoding="utf-8").split()] if given.there else []
    there: dict[str, str | None] = {canonicalize_name(name): (*version, None)[0] for name, *version in listed}
    try:
        print(*make_pack(given.python, there), sep="\n")  # noqa: T201 -- a command
    except GpuserveError as problem:
        return refused(problem)
    return 0


def make_pack(python: str, there: Mapping[str, str | None]) -> list[str]:
    """Make a pack for a version of Python, in the place of an older one, and say what is in it.

    ``there`` is what the machine has beside torch: versions by name, None where any will do.

    Raises:
        UsageProblem: A wheel cannot be had, or it is too much beside the checkout.
    """
    shutil.rmtree(PACK, ignore_errors=True)
    PACK.mkdir()
    pins = {name: needed(texts, python, there) for name, texts in requirements().items()}
    (PACK / MANIFEST).write_text(json.dumps({"python": python, "pins": pins}, indent=1) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for some in filter(None, pins.values()):
            download(some, python, folder)
        for wheel in Path(folder).glob("*.whl"):
            shrink(wheel, PACK / wheel.name, python)
    git(ROOT, "init", "--quiet", "--bare", "--template=", "--initial-branch=main", str(PACK / REPOSITORY))
    git(PACK / REPOSITORY, "fetch", "--quiet", f"--depth={DEPTH}", ROOT.as_uri(), "HEAD:refs/heads/main")
    sizes = {each.name: _bytes(each) for each in sorted(PACK.iterdir())}
    names = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate").split("\0")
    most = MOST_MIB - sum(_bytes(ROOT / name) for name in names if name and (ROOT / name).exists()) / MIB
    total = sum(sizes.values()) / MIB
    lines = [f"{size / MIB:5.1f} MiB  {name}" for name, size in sizes.items()]
    lines.append(f"{total:5.1f} MiB of {most:.1f} MiB, {git(ROOT, 'log', '-1', '--format=commit %h: %s')}")
    if total > most:
        remedies = ["--there=FILE, what `pip freeze` prints on the machine"]
        raise UsageProblem("the pack is too large", found="\n".join(lines), remedies=remedies)
    return [*lines, "not in it: changes that are not committed"] if git(ROOT, "status", "--porcelain") else lines


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, and return what it prints."""
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _bytes(place: Path) -> int:
    """Size of a file, or of all in a folder."""
    return sum(path.lstat().st_size for path in (place, *place.rglob("*")) if not path.is_dir())


def requirements() -> dict[str, list[str]]:
    """Read what each environment needs from the project's own lists."""
    import tomllib  # type: ignore[import-not-found]  # Python 3.11 has it, where packs are made

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    found = {name: [text for key in keys for text in extras[key]] for name, keys in EXTRAS.items()}
    # Tests import it.
    found[MAIN] += [*project["dependencies"], "hypothesis"]
    return {name: [text for text in texts if not text.startswith(NOT_PACKED)] for name, texts in found.items()}


def needed(texts: Iterable[str], python: str, there: Mapping[str, str | None]) -> list[str]:
    """Distributions that requirements come to, by what is installed here, without what is there: ``name==version``."""
    machine = {**dict.fromkeys(_closure(["torch"], python, {})), **there}
    return [f"{name}=={metadata.version(name)}" for name in sorted(_closure(texts, python, machine))]


def _closure(texts: Iterable[str], python: str, there: Mapping[str, str | None]) -> dict[str, set[str]]:
    """Distributions, each with the extras that are asked of it."""
    found: dict[str, set[str]] = {}
    environment: dict[str, str] = {name: str(value) for name, value in default_environment().items()}
    environment |= {"python_version": python, "python_full_version": f"{python}.0"}
    todo = deque((Requirement(text), "") for text in texts)
    while todo:
        requirement, extra = todo.popleft()
        if requirement.marker is not None and not requirement.marker.evaluate({**environment, "extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name in there and ((has := there[name]) is None or requirement.specifier.contains(has, prereleases=True)):
            continue
        new = {"", *requirement.extras} - found.get(name, set())
        found.setdefault(name, set()).update(new)
        todo += [(Requirement(text), each) for each in new for text in metadata.requires(name) or []]
    return found


def download(pins: Sequence[str], python: str, folder: str) -> None:
    """Fetch wheels. Raises `UsageProblem` where one cannot be had."""
    # Pip takes only tags that are named.
    tags = [*(f"_2_{minor}" for minor in range(5, 40)), "1", "2010", "2014"]
    options = ["--quiet", "--no-deps", "--only-binary=:all:", f"--python-version={python}", "--implementation=cp"]
    options += [f"--platform=manylinux{tag}_x86_64" for tag in tags]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", folder, *pins]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        remedies = ["install another version of it here, and pack again"]
        raise UsageProblem(f"a wheel for Python {python} cannot be had", found=done.stderr, remedies=remedies)


def shrink(wheel: Path, into: Path, python: str) -> None:
    """Write a wheel anew, smaller, for one version of Python; pip does not ask for what its list has beside that."""
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(into, "w") as target:
        for info in source.infolist():
            of = OF_PYTHON.search(info.filename)
            if not info.is_dir() and not (of and (of[1] or f"3{of[2]}") != python):
                # Its entry goes on to say who may execute it.
                target.writestr(info, source.read(info), zipfile.ZIP_LZMA)


if __name__ == "__main__":
    sys.exit(run_command(main))
