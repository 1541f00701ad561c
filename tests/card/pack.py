"""``python -m tests.card.pack``: collects wheels for a machine that has a card and no network.

Versions are those of the environment that this runs in, so they are what the tests ran with. Each wheel is written
anew: compressed better, and without debug symbols.
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
from base64 import urlsafe_b64encode
from collections import Counter, deque
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.process.command_line import refused, run_command
from tests.card.groups import FOLDER, MANIFEST, ROOT, TORCH, groups
from tests.card.records import read_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

MIB: Final = 1 << 20

MOST_MIB: Final = 64.0
"""What travels to a lent machine: the checkout and the pack together."""

SPARE_MIB: Final = 1.0
"""Left free for folders and the records of an archive."""

GLIBC_MINORS: Final = range(5, 40)
"""Of the manylinux tags that a wheel may have; pip takes only those that are named."""

ELF: Final = b"\x7fELF"

OF_PYTHON: Final = re.compile(r"python_backend_stubs/(\d+\.\d+)/|\.libs/libpython3-[0-9a-f]+(\.\d+)\.so")
"""In Triton's wheel: programs for one version of Python each, and the library of one of them."""

There = dict[str, str | None]
"""What the machine has: versions by name, None where any will do."""


@dataclass
class Pack:
    """What is packed, and what is not, each with its reason."""

    folder: Path
    most_bytes: int
    pythons: Sequence[str]
    sizes: dict[str, int] = field(default_factory=dict)
    by_group: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, str] = field(default_factory=dict)
    pins: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def add(self, group: str, python: str, wheel: Path) -> None:
        """Write a wheel anew into the pack, where it fits, for a group and a Python."""
        if wheel.name not in self.sizes and wheel.name not in self.left_out:
            self._write(group, wheel)
        if wheel.name in self.sizes:
            name, version, *_ = parse_wheel_filename(wheel.name)
            self.pins.setdefault(python, {}).setdefault(group, []).append(f"{name}=={version}")

    def _write(self, group: str, wheel: Path) -> None:
        packed = self.folder / wheel.name
        shrink(wheel, packed, self.pythons)
        size = packed.stat().st_size
        if sum(self.sizes.values()) + size > self.most_bytes:
            packed.unlink()
            self.left_out[wheel.name] = f"its {size / MIB:.1f} MiB do not fit"
        else:
            self.sizes[wheel.name] = size
            self.by_group[group] += size


def main(arguments: Sequence[str]) -> int:
    """Collect, tell, and return the exit status."""
    given = _parser().parse_args(arguments)
    try:
        pack = make_pack(given.into, given.python or [_version()], _there(given.there), given.most_mib)
    except GpuserveError as problem:
        return refused(problem)
    say = [f"{name}: {size / MIB:.1f} MiB" for name, size in pack.by_group.items()]
    say += [f"left out: {name}: {why}" for name, why in pack.left_out.items()]
    total = sum(pack.sizes.values()) / MIB
    say.append(f"{given.into}: {len(pack.sizes)} wheels, {total:.1f} MiB of {pack.most_bytes / MIB:.1f} MiB")
    print("\n".join(say))  # noqa: T201 -- a command
    return 0


def make_pack(into: Path, pythons: Sequence[str], there: There, most_mib: float) -> Pack:
    """Make a pack, in the place of an older one.

    Args:
        into: Its folder.
        pythons: Versions of the machine's Python that it may have, such as ``3.12``.
        there: What the machine has beside torch.
        most_mib: Of the checkout and the pack together.

    Raises:
        UsageProblem: Nothing fits beside the checkout.
    """
    most = int((most_mib - SPARE_MIB) * MIB) - checkout_bytes(ROOT)
    if most <= 0:
        raise UsageProblem(f"beside the checkout nothing fits into {most_mib:g} MiB", remedies=["--most-mib=100"])
    if into.exists() and any(into.iterdir()) and not (into / MANIFEST).exists():
        raise UsageProblem(f"{into} is no pack and not empty", remedies=["--into=FOLDER, a new one"])
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    pack = Pack(into, most, pythons)
    with tempfile.TemporaryDirectory() as folder:
        for group, requirements in groups().items():
            for python in pythons:
                pins = [f"{name}=={metadata.version(name)}" for name in needed(requirements, python, there)]
                fetched = Path(folder) / group / python
                pack.left_out.update(dict.fromkeys(download(pins, python, fetched), f"no wheel for Python {python}"))
                # The small ones first: of what does not fit as little as possible is left out.
                for wheel in sorted(fetched.glob("*.whl"), key=lambda path: path.stat().st_size):
                    pack.add(group, python, wheel)
    told = {"pythons": pack.pins, "left_out": pack.left_out}
    (into / MANIFEST).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return pack


def needed(requirements: Iterable[str], python: str, there: Mapping[str, str | None]) -> list[str]:
    """Names of the distributions that these requirements come to, by what is installed here, without what is there."""
    machine = {**dict.fromkeys(_closure([TORCH], python, {})), **there}
    return sorted(_closure(requirements, python, machine))


def _closure(requirements: Iterable[str], python: str, there: Mapping[str, str | None]) -> dict[str, set[str]]:
    """Distributions, each with the extras that are asked of it."""
    found: dict[str, set[str]] = {}
    environment: dict[str, str] = {name: str(value) for name, value in default_environment().items()}
    environment |= {"python_version": python, "python_full_version": f"{python}.0"}
    todo = deque((Requirement(text), "") for text in requirements)
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


def download(pins: Sequence[str], python: str, folder: Path) -> list[str]:
    """Fetch wheels, all at once or else one by one; those that cannot be had."""
    folder.mkdir(parents=True)
    if not pins or _fetch(pins, python, folder):
        return []
    return [pin for pin in pins if not _fetch([pin], python, folder)]


def _fetch(pins: Sequence[str], python: str, folder: Path) -> bool:
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in GLIBC_MINORS]
    platforms += [f"--platform=manylinux{year}_x86_64" for year in (1, 2010, 2014)]
    options = ["--quiet", "--no-deps", "--only-binary=:all:", f"--python-version={python}", "--implementation=cp"]
    command = [sys.executable, "-m", "pip", "download", *options, *platforms, "--dest", str(folder), *pins]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0


def shrink(wheel: Path, into: Path, pythons: Sequence[str]) -> None:
    """Write a wheel anew, smaller; its list of contents is that of what it holds then."""
    rows: list[str] = []
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(into, "w", zipfile.ZIP_LZMA) as target:
        (record,) = [name for name in source.namelist() if name.endswith(".dist-info/RECORD")]
        for info in source.infolist():
            if info.filename == record or info.is_dir() or _is_of_another(info.filename, pythons):
                continue
            data = _stripped(source.read(info))
            _put(target, info, data)
            digest = urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{info.filename},sha256={digest},{len(data)}")
        _put(target, source.getinfo(record), "\n".join([*rows, f"{record},,", ""]).encode())


def _put(target: zipfile.ZipFile, info: zipfile.ZipInfo, data: bytes) -> None:
    new = zipfile.ZipInfo(info.filename, info.date_time)
    # It says who may execute a program.
    new.external_attr, new.compress_type = info.external_attr, zipfile.ZIP_LZMA
    target.writestr(new, data)


def _is_of_another(name: str, pythons: Sequence[str]) -> bool:
    found = OF_PYTHON.search(name)
    return found is not None and (found[1] or f"3{found[2]}") not in pythons


def _stripped(data: bytes) -> bytes:
    """An executable or library without its debug symbols; as it is where that makes it no smaller."""
    if not data.startswith(ELF) or shutil.which("strip") is None:
        return data
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        done = subprocess.run(["strip", "--strip-debug", file.name], check=False, stderr=subprocess.DEVNULL)
        smaller = Path(file.name).read_bytes()
    return smaller if done.returncode == 0 and len(smaller) < len(data) else data


def checkout_bytes(root: Path) -> int:
    """Size of what travels without being named: all files that git does not ignore."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return sum((root / name).lstat().st_size for name in names if name and (root / name).exists())


def _there(place: Path | None) -> There:
    if place is None:
        return {}
    if place.is_dir():
        return dict(_listed(read_records(place)[0].facts["installed"]))
    return dict(_listed(place.read_text(encoding="utf-8").splitlines()))


def _listed(lines: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    for line in lines:
        name, _, version = line.strip().partition("==")
        if name and not name.startswith(("#", "-")):
            yield canonicalize_name(name.partition(" @ ")[0]), version or None


def _version() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.card.pack", description=__doc__)
    parser.add_argument(
        "--python",
        action="append",
        metavar="X.Y",
        help="a version that the machine may have (default: this one); again",
    )
    parser.add_argument(
        "--there", type=Path, metavar="PLACE", help="what the machine has: of `pip freeze`, or a run there"
    )
    parser.add_argument("--most-mib", type=float, default=MOST_MIB, help=f"checkout and pack (default {MOST_MIB:g})")
    parser.add_argument("--into", type=Path, default=FOLDER, help=f"the pack's folder (default {FOLDER.name})")
    return parser


if __name__ == "__main__":
    sys.exit(run_command(main))
