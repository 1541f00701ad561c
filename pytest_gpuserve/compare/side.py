"""What an argument of the command stands for: found on the disk or in git, and read."""

from __future__ import annotations

import tempfile
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.compare.load import Key, Load, Sample
from pytest_gpuserve.compare.repository import HASH_SHOWN, Repository
from pytest_gpuserve.compare.result_file import is_result, loads_of, read_result
from pytest_gpuserve.errors import BaselineUnusable, UsageProblem
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.measure.points import NotMeasured, pooled_value
from pytest_gpuserve.measure.rounds import reduced_by_metric
from pytest_gpuserve.store.baseline import Stored, read
from pytest_gpuserve.store.published import FOLDER as PUBLISHED
from pytest_gpuserve.store.remote.address import StorageAddress, is_address, parse_address
from pytest_gpuserve.store.remote.folder import SUFFIX, StorageProblem, open_remote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuserve.store.schema import Entry


def fetched(address: StorageAddress) -> tuple[StorageAddress, Mapping[str, bytes]]:
    """Fetch what is at an address.

    Args:
        address: Of a folder of baselines; or of one file, a result or a baseline, which ends in ``.json``.

    Returns:
        The folder, and what is in each file by its name below it; of a file the folder that it lies in.

    Raises:
        UsageProblem: There is nothing, or a library that the scheme needs is not installed.
        StorageProblem: The storage cannot be reached, or refuses.
    """
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


REVISIONS: Final = "baselines of a revision are written REV:, such as HEAD~5:, one file of them REV:PATH"

NO_SESSION: Final = "not every session has it"


@dataclass(frozen=True)
class Document:
    """A file.

    Args:
        name: What people call it.
        path: Where it is, in the checkout or on the disk.
        root: The folder of baselines that it lies in, else the folder that was named, else its own.
        data: What is in it.
    """

    name: str
    path: PurePosixPath
    root: PurePosixPath
    data: bytes


@dataclass(frozen=True)
class Side:
    """One of the two that are compared.

    Args:
        name: What it is, for people.
        loads: What it knows.
        is_one_file: Whether it is a single baseline file, which may have been copied to anywhere.
    """

    name: str
    loads: Mapping[Key, Load]
    is_one_file: bool = False


def read_side(text: str, folder: Path, baseline_dir: Path) -> Side:
    """Read what an argument stands for.

    Args:
        text: The argument.
        folder: What it is relative to.
        baseline_dir: The folder of baselines, which ``REV:`` means.

    Raises:
        UsageProblem: There is no such file, folder or revision, or it holds no baselines and no results.
        BaselineUnusable: A baseline file cannot be read or trusted.
        StorageProblem: What is in a storage cannot be fetched.
    """
    address = parse_address(text, called="") if is_address(text) else None
    if isinstance(address, StorageAddress):
        return _in_storage(address)
    path = folder / text if address is None else address
    if path.is_dir():
        files = sorted(path.rglob("*.json"))
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
        if name == inner or (name.endswith(".json") and f"/{PUBLISHED}/" not in name)
    }
    if not wanted:
        raise UsageProblem(f"{rev} has no baselines in {inner}", looked=[f"commit {commit}"], remedies=[REVISIONS])
    documents = [
        Document(f"{rev}:{name}", PurePosixPath(name), _root_of(name, roots), repository.content(blob))
        for name, blob in wanted.items()
    ]
    return _side(f"{rev}:{inner} (commit {commit[:HASH_SHOWN]})", documents, is_folder=inner not in wanted)


def read_baseline(document: Document) -> dict[str, Stored]:
    """Read a baseline file of which only the content is at hand.

    Raises:
        BaselineUnusable: It cannot be read or trusted; names file and field.
    """
    with tempfile.TemporaryDirectory(prefix="gpuserve-") as folder:
        # The store reads files, with all of its checks.
        path = Path(folder) / "baseline.json"
        path.write_bytes(document.data)
        try:
            return read(path)
        except BaselineUnusable as problem:
            raise BaselineUnusable(
                problem.summary.replace(str(path), document.name),
                found=problem.found,
                remedies=[remedy for remedy in problem.remedies if str(path) not in remedy],
            ) from None


def baseline_load(key: Key, stored: Stored) -> Load:
    """A baseline's entry as a side of a comparison knows it."""
    records = stored.entry.sessions
    values = {}
    for name, metric in METRICS.items():
        try:
            values[name] = pooled_value(metric, stored.sessions)
        except NotMeasured:
            continue
    samples = {
        name: tuple(
            Sample(
                record.host.id,
                record.occasion,
                record.at,
                each.y,
                each.u,
                each.starts,
                each.requests,
                session.yardstick,
            )
            for each, record, session in zip(found, records, stored.sessions, strict=True)
        )
        for name, found in reduced_by_metric(stored.sessions).items()
    }
    return Load(
        key=key,
        values=values,
        samples=samples,
        unsampled=NO_SESSION,
        workload=stored.entry.workload,
        devices=_distinct(msgspec.to_builtins(record.device) for record in records),
        machines=_distinct(msgspec.to_builtins(record.host) for record in records),
        tolerances={},
        asked=anchored(stored.entry),
    )


def anchored(entry: Entry) -> frozenset[str]:
    """Names of the metrics that an entry has anchors of, which its test compares; none of an older entry."""
    return frozenset(line.metric for anchor in entry.anchors for line in anchor.metrics)


def baseline_key(path: PurePosixPath, root: PurePosixPath, name: str, device: str) -> Key:
    """What an entry is called: its file is the part of the path below the device's folder, if it lies in one.

    Args:
        path: Of the file.
        root: The folder of baselines, or one in it. Below it the device's folder comes first, whatever else is called
            so; above it, it comes last.
        name: Of the entry.
        device: That it was measured on.
    """
    inside, outside = path.relative_to(root).parts, root.parts
    if device in inside[:-1]:
        below = inside[inside.index(device) + 1 :]
    elif device in outside:
        below = (*outside[len(outside) - outside[::-1].index(device) :], *inside)
    else:
        below = inside[-1:]
    return Key(device, "/".join(below), name)


def _in_storage(address: StorageAddress) -> Side:
    folder, files = fetched(address)
    root = PurePosixPath("/", folder.url.partition("://")[2])
    documents = [Document(folder.of(name), root / name, root, data) for name, data in files.items()]
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


def _on_disk(path: Path, name: str, roots: Sequence[Path]) -> Document:
    place = path.absolute().as_posix()
    root = _root_of(place, [each.absolute().as_posix() for each in roots])
    try:
        return Document(name, PurePosixPath(place), root, path.read_bytes())
    except OSError as problem:
        raise UsageProblem(f"{name} cannot be read", found=str(problem)) from None


def _root_of(path: str, roots: Sequence[str]) -> PurePosixPath:
    """The first of these folders that a file lies in, else its own."""
    above = PurePosixPath(path).parents
    return next((root for root in map(PurePosixPath, roots) if root in above), above[0])


def _side(name: str, documents: Sequence[Document], *, is_folder: bool) -> Side:
    if not is_folder and is_result(documents[0].data):
        result = read_result(documents[0].name, documents[0].data)
        if not (result.tests or result.gpu):
            raise UsageProblem(f"{name} has nothing to compare: it is of a runner without a test that measures")
        told = ", ".join(filter(None, (result.at, (result.commit or "")[:HASH_SHOWN])))
        return Side(f"{name} ({told})" if told else name, _by_key(name, loads_of(name, result)))
    loads = []
    for document in documents:
        for entry, stored in read_baseline(document).items():
            device = stored.entry.sessions[-1].device.name
            loads.append(baseline_load(baseline_key(document.path, document.root, entry, device), stored))
    if not loads:
        raise UsageProblem(f"{name} holds no baselines", remedies=["record some: pytest --baseline-update", REVISIONS])
    return Side(name, _by_key(name, loads), is_one_file=not is_folder)


def _by_key(name: str, loads: Iterable[Load]) -> dict[Key, Load]:
    found: dict[Key, Load] = {}
    for load in loads:
        if found.setdefault(load.key, load) is not load:
            raise UsageProblem(f"{name} holds two of {load.key}", remedies=["name one folder or file of them"])
    return found


def _distinct(facts: Iterable[Mapping[str, object]]) -> tuple[Mapping[str, object], ...]:
    found: list[Mapping[str, object]] = []
    for each in facts:
        if each not in found:
            found.append(each)
    return tuple(found)
