"""What an argument of the command stands for: found on the disk or in git, and read."""

from __future__ import annotations

import hashlib
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.compare.bench import AIPERF_FILE, read_bench
from pytest_gpuserve.compare.bench_loads import BenchFile, bench_loads
from pytest_gpuserve.compare.loads import LoadKey, MeasuredLoad, baseline_key, baseline_load, loads_of
from pytest_gpuserve.compare.repository import HASH_SHOWN, Repository
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.report.schema import is_result, read_result
from pytest_gpuserve.store.baseline import Origin, parse
from pytest_gpuserve.store.published import FOLDER as PUBLISHED
from pytest_gpuserve.store.remote import StorageAddress, is_address, parse_address
from pytest_gpuserve.store.remote.folder import SUFFIX, StorageProblem, open_remote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

JSON_LINES: Final = ".jsonl"
"""How the files of SGLang's bench_serving end."""

REVISIONS: Final = "baselines of a revision are written REV:, such as HEAD~5:, one file of them REV:PATH"


def _fetched(address: StorageAddress) -> tuple[StorageAddress, Mapping[str, bytes]]:
    """Fetch what is at an address."""
    above, _, name = address.url.rpartition("/")
    is_folder = not name.endswith(SUFFIX) or above.endswith("/")
    folder = address if is_folder else StorageAddress(address.scheme, above)
    found = {}
    with closing(open_remote(folder, called="")) as remote:
        listed = sorted(remote.listing()) if is_folder else [name]
        for each in (each for each in listed if PUBLISHED not in each.split("/")):
            held = remote.fetch(each)
            if held is not None:
                found[each] = held.data
            elif is_folder:
                # What is left would be compared as if it were all.
                raise StorageProblem(f"{folder.of(each)} was removed while {folder} was read")
    if not found:
        raise UsageProblem(
            f"there is no {'baseline in' if is_folder else 'file'} {address}",
            remedies=["name the folder that has those of the devices in it, or a file that ends in .json"],
        )
    return folder, found


@dataclass(frozen=True)
class _SideFile:
    """A file: its name for people, its path, the folder of baselines around it, and its content."""

    name: str
    path: PurePosixPath
    root: PurePosixPath
    data: bytes


@dataclass(frozen=True)
class ComparisonSide:
    """One of the two that are compared.

    Args:
        name: What it is, for people.
        loads: What it knows.
        is_one_file: Whether it is a single baseline file, which may have been copied to anywhere.
        is_bench: Whether it is of files of other tools.
    """

    name: str
    loads: Mapping[LoadKey, MeasuredLoad]
    is_one_file: bool = False
    is_bench: bool = False


def read_side(text: str, folder: Path, baseline_dir: Path) -> ComparisonSide:
    """Read what an argument stands for.

    Args:
        text: The argument.
        folder: What it is relative to.
        baseline_dir: The folder of baselines, which ``REV:`` means.

    Raises:
        UsageProblem: There is no such file, folder or revision, or it holds no baselines and no results, or not only
            those of one tool.
        BaselineUnusable: A baseline file cannot be read or trusted.
        StorageProblem: What is in a storage cannot be fetched.
    """
    address = parse_address(text, called="") if is_address(text) else None
    if isinstance(address, StorageAddress):
        return _in_storage(address)
    path = folder / text if address is None else address
    if path.is_dir():
        files = sorted(each for each in path.rglob("*.json*") if each.suffix in {SUFFIX, JSON_LINES})
        inside = {file: file.relative_to(path) for file in files}
        documents = [
            _on_disk(file, str(PurePosixPath(text) / each), [baseline_dir, path])
            for file, each in inside.items()
            if PUBLISHED not in each.parts
        ]
        return _side(text, documents, is_folder=True)
    if path.exists():
        return _side(text, [_on_disk(path, text, [baseline_dir])], is_folder=False)
    rev, colon, inner = text.partition(":")
    if not colon or address is not None:
        raise UsageProblem(f"there is no file or folder {text}", looked=[str(path)], remedies=[REVISIONS])
    repository = Repository.around(folder, f"{text}, which is no file,")
    commit = repository.commit(rev).hash
    inner = inner.removesuffix("/") or repository.within(baseline_dir)
    files_there = repository.files(commit, inner)
    roots = [inner]
    with suppress(UsageProblem):
        # Who names a path need not have the folder of baselines in the checkout.
        roots.insert(0, repository.within(baseline_dir))
    wanted = {
        name: blob
        for name, blob in files_there.items()
        if name == inner or (name.endswith((SUFFIX, JSON_LINES)) and f"/{PUBLISHED}/" not in name)
    }
    if not wanted:
        raise UsageProblem(f"{rev} has no baselines in {inner}", looked=[f"commit {commit}"], remedies=[REVISIONS])
    documents = [
        _SideFile(f"{rev}:{name}", PurePosixPath(name), _root_of(name, roots), repository.content(blob))
        for name, blob in wanted.items()
    ]
    return _side(f"{rev}:{inner} (commit {commit[:HASH_SHOWN]})", documents, is_folder=inner not in wanted)


def _in_storage(address: StorageAddress) -> ComparisonSide:
    folder, files = _fetched(address)
    root = PurePosixPath("/", folder.url.partition("://")[2])
    documents = [_SideFile(folder.of(name), root / name, root, data) for name, data in files.items()]
    is_folder = folder == address
    side = _side(address.url, documents, is_folder=is_folder)
    folders = {part for name in files for part in name.split("/")[:-1]}
    if is_folder and folders.isdisjoint(key.device for key in side.loads):
        # What lies at the top of the folder of one device was not listed.
        raise UsageProblem(
            f"{address} is a folder of one device's baselines",
            remedies=["name the folder above it, with --device=NAME for the loads of one device"],
        )
    return side


def _on_disk(path: Path, name: str, roots: Sequence[Path]) -> _SideFile:
    place = path.absolute().as_posix()
    root = _root_of(place, [each.absolute().as_posix() for each in roots])
    try:
        return _SideFile(name, PurePosixPath(place), root, path.read_bytes())
    except OSError as problem:
        raise UsageProblem(f"{name} cannot be read", found=str(problem)) from None


def _root_of(path: str, roots: Sequence[str]) -> PurePosixPath:
    """The first of these folders that a file lies in, else its own."""
    above = PurePosixPath(path).parents
    return next((root for root in map(PurePosixPath, roots) if root in above), above[0])


def _side(name: str, documents: Sequence[_SideFile], *, is_folder: bool) -> ComparisonSide:
    if not is_folder and is_result(documents[0].data):
        result = read_result(documents[0].name, documents[0].data)
        if not (result.tests or result.gpu):
            raise UsageProblem(f"{name} has nothing to compare: it is of a runner without a test that measures")
        when = ", ".join(filter(None, (result.at, (result.commit or "")[:HASH_SHOWN])))
        return ComparisonSide(f"{name} ({when})" if when else name, _by_key(name, loads_of(name, result)))
    benches = _benches(documents)
    if benches:
        starts = f"{len(benches)} {'file' if len(benches) == 1 else 'files'} of another tool"
        return ComparisonSide(f"{name} ({starts})", _by_key(name, bench_loads(benches)), is_bench=True)
    loads = []
    for document in documents:
        if document.path.suffix == JSON_LINES:
            continue
        origin = Origin(document.name, "name a file or a revision that can be used")
        for entry, stored in parse(document.data, origin).items():
            device = stored.entry.sessions[-1].device.name
            loads.append(baseline_load(baseline_key(document.path, document.root, entry, device), stored))
    if not loads:
        raise UsageProblem(f"{name} holds no baselines", remedies=["record some: pytest --baseline-update", REVISIONS])
    return ComparisonSide(name, _by_key(name, loads), is_one_file=not is_folder)


def _benches(documents: Sequence[_SideFile]) -> list[BenchFile]:
    """The files of other tools, which must then be all there are; none where there is none."""
    # AIPerf writes further files beside the one with its results.
    results = [document for document in documents if document.path.name == AIPERF_FILE] or documents
    found = [
        BenchFile(each.name, hashlib.sha256(each.data).hexdigest(), read_bench(each.name, each.data))
        for each in results
    ]
    other = [file.name for file in found if not file.runs]
    if other and (len(other) < len(found) or all(each.path.suffix == JSON_LINES for each in results)):
        raise UsageProblem(
            f"{other[0]} is no result of vLLM's bench, SGLang's bench_serving, GuideLLM or AIPerf",
            remedies=["give a file of one of them, or a folder that has nothing but such files of one side"],
        )
    return [] if other else found


def _by_key(name: str, loads: Iterable[MeasuredLoad]) -> dict[LoadKey, MeasuredLoad]:
    found: dict[LoadKey, MeasuredLoad] = {}
    for load in loads:
        if found.setdefault(load.key, load) is not load:
            raise UsageProblem(f"{name} holds two of {load.key}", remedies=["name one folder or file of them"])
    return found
