"""What was measured at each place of a load's history: in the editions of its baseline in git, and in result files."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.builds.git import FULL_HISTORY
from pytest_gpuserve.compare.loads import NO_WORKLOAD, SessionId, anchored, baseline_key, loads_of, occasion_of
from pytest_gpuserve.compare.repository import HASH_SHOWN
from pytest_gpuserve.gate.metric import LATENCY, METRICS
from pytest_gpuserve.measure.histogram import merge
from pytest_gpuserve.measure.points import NotMeasured, pooled_value
from pytest_gpuserve.store.published import FOLDER as PUBLISHED
from pytest_gpuserve.store.schema import READ_SCHEMAS, SCHEMA, Entry, session_of
from pytest_gpuserve.units import format_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_gpuserve.compare.loads import LoadKey, MeasuredLoad
    from pytest_gpuserve.compare.repository import Commit, Repository
    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.report.schema import ResultRecord
    from pytest_gpuserve.store.schema import SessionRecord


@dataclass(frozen=True, slots=True)
class Edition:
    """An entry as a commit left it, which was another before, or none.

    Args:
        folder: The baselines, from the top of the checkout.
        path: The file, from there too, by the name that it has at last.
    """

    commit: Commit
    folder: str
    path: str
    name: str
    entry: Entry


@dataclass
class Walk:
    """What was found.

    Args:
        editions: Oldest first.
        notes: What could not be read, and what is not known, a line each.
    """

    editions: list[Edition] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def walk(repository: Repository, folder: str, since: str | None) -> Walk:
    """Read the editions of all entries.

    A commit of a merge counts by what it brought into the line of first parents. A file that is given another name
    stays the same file if nothing else about it changed, or if it is the only one that went and came with the commit
    and has an entry in common.

    Args:
        since: The full hash of a commit: only what it had, and what came after it.

    Raises:
        UsageProblem: Git cannot be asked.
    """
    walker = _Walker(repository, folder)
    if repository.is_shallow:
        walker.found.notes.append(f"older commits are not here: {FULL_HISTORY}")
    commits = repository.commits(folder, since)
    for commit in commits if since is None else [repository.commit(since), *commits]:
        walker.step(commit)
    return walker.found


class _CommittedBaseline(msgspec.Struct):
    # Newer files may have more, but not what we read of them otherwise.
    schema: int
    entries: dict[str, msgspec.Raw]


class _Walker:
    def __init__(self, repository: Repository, folder: str) -> None:
        self.found = Walk()
        self._repository = repository
        self._folder = folder
        self._files: dict[str, str] = {}
        self._known: dict[tuple[str, str], bytes] = {}

    def step(self, commit: Commit) -> None:
        files = {
            path: blob
            for path, blob in self._repository.files(commit.hash, self._folder).items()
            if path.endswith(".json") and f"/{PUBLISHED}/" not in path
        }
        read = {path: self._read(commit, path, blob) for path, blob in files.items() if self._files.get(path) != blob}
        for old, new in self._renamed(files, read):
            self._rename(old, new)
        for path in self._files.keys() - files.keys():
            # What comes again later is read again.
            self._known = {place: raw for place, raw in self._known.items() if place[0] != path}
        for path, entries in read.items():
            for name, raw in entries.items():
                self._keep(commit, path, name, raw)
        self._files = files

    def _renamed(self, files: Mapping[str, str], read: Mapping[str, Mapping[str, bytes]]) -> Iterator[tuple[str, str]]:
        gone = sorted(self._files.keys() - files.keys())
        came = sorted(files.keys() - self._files.keys())
        for new in came:
            old = next((path for path in gone if self._files[path] == files[new]), None)
            if old is None and len(gone) == len(came) == 1 and self._names_of(gone[0]) & read[new].keys():
                old = gone[0]
            if old is not None:
                gone.remove(old)
                yield old, new

    def _names_of(self, path: str) -> set[str]:
        return {name for file, name in self._known if file == path}

    def _rename(self, old: str, new: str) -> None:
        editions = self.found.editions
        editions[:] = [replace(each, path=new) if each.path == old else each for each in editions]
        for name in self._names_of(old):
            self._known[new, name] = self._known.pop((old, name))

    def _read(self, commit: Commit, path: str, blob: str) -> dict[str, bytes]:
        """The entries of a file as they stand there; none where it cannot be read."""
        try:
            file = msgspec.json.decode(self._repository.content(blob), type=_CommittedBaseline)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            self._note(commit, path, str(problem))
            return {}
        if file.schema not in READ_SCHEMAS:
            self._note(commit, path, f"schema {file.schema}; this version reads schema {SCHEMA}")
            return {}
        return {name: bytes(raw) for name, raw in file.entries.items()}

    def _keep(self, commit: Commit, path: str, name: str, raw: bytes) -> None:
        digest = sha256(raw).digest()
        if self._known.get((path, name)) == digest:
            return
        self._known[path, name] = digest
        try:
            entry = msgspec.json.decode(raw, type=Entry)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            self._note(commit, f"{path} {name}", str(problem))
            return
        self.found.editions.append(Edition(commit, self._folder, path, name, entry))

    def _note(self, commit: Commit, what: str, problem: str) -> None:
        self.found.notes.append(f"{commit.hash[:HASH_SHOWN]}: {what} cannot be read and is left out: {problem}")


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A metric at one place, in its unit.

    Args:
        value: Over all sessions together.
        low: The least of any session; None where there is but one, or sessions are not known.
        high: The greatest, likewise.
    """

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Wanted:
    """What was asked for.

    Args:
        has: Whether a load is wanted.
        metrics: Those that are; empty for the usual ones, and those on request that a load's test compares.
        compared: Names of the metrics that the test of a load compares, as far as anything says so.
    """

    has: Callable[[LoadKey], bool]
    metrics: tuple[Metric, ...] = ()
    compared: Mapping[LoadKey, frozenset[str]] = field(default_factory=dict)

    def metrics_of(self, key: LoadKey) -> tuple[Metric, ...]:
        """The metrics that are wanted of a load."""
        named = self.compared.get(key, frozenset())
        return self.metrics or tuple(
            metric for name, metric in METRICS.items() if not metric.on_request or name in named
        )


@dataclass(frozen=True)
class Observation:
    """What was measured of a load on one host, at one place of its history.

    Args:
        label: The place, for people: a commit or a file, and a date.
        commit: The full hash of the commit that recorded it; of a result, of the code that was measured, if known.
        seconds: When, since 1970; None where that is not known.
        workload: What it was, so that others of it are of one line.
        sessions: How many were measured; 0 where that is not known.
        note: Why the baseline was loosened, if it was.
        anchors: For each metric that has one its anchor, in words.
        taken: What tells its sessions from others; of a result without them, the run.
    """

    key: LoadKey
    host: str
    label: str
    commit: str
    seconds: float | None
    workload: Mapping[str, str]
    device: Mapping[str, object]
    known: Mapping[str, MetricValue]
    sessions: int = 0
    note: str = ""
    anchors: Mapping[str, str] | None = None
    taken: tuple[SessionId, ...] = ()


def compared_of(
    editions: Iterable[Edition], results: Iterable[tuple[str, ResultRecord]]
) -> dict[LoadKey, frozenset[str]]:
    """Names of the metrics that the test of each load compares, by the anchors of baselines and results' verdicts.

    Raises:
        UsageProblem: A result does not name its host or its device.
    """
    found: dict[LoadKey, frozenset[str]] = {}
    asked = [(_key_of(edition), anchored(edition.entry)) for edition in editions]
    asked += [(load.key, load.asked) for name, result in results for load in loads_of(name, result)]
    for key, names in asked:
        found[key] = found.get(key, frozenset()) | names
    return found


def of_editions(editions: Iterable[Edition], wanted: Wanted, note: list[str]) -> list[Observation]:
    """The observations of baselines: of each edition the sessions that no earlier one has, for each of their hosts.

    An entry that grows by sessions of the same build holds the old ones too; they are not counted again.

    Args:
        editions: Oldest first.
        wanted: Which loads and metrics; to compute the others would take long.
    """
    seen: dict[tuple[str, str], set[bytes]] = {}
    found = []
    latest = 0.0
    for edition in editions:
        # Commits of a line may be dated in any order; their own order is what counts.
        latest = max(latest, float(edition.commit.seconds))
        if not wanted.has(_key_of(edition)):
            continue
        before = seen.setdefault((edition.path, edition.name), set())
        by_host: dict[str, list[SessionRecord]] = {}
        for record in edition.entry.sessions:
            digest = sha256(msgspec.json.encode(record)).digest()
            if digest not in before:
                by_host.setdefault(record.host.id, []).append(record)
            before.add(digest)
        for host, records in by_host.items():
            try:
                sessions = [session_of(record) for record in records]
            except ValueError as problem:
                commit = edition.commit.hash[:HASH_SHOWN]
                note.append(f"{commit}: {edition.path} {edition.name} cannot be read and is left out: {problem}")
                continue
            known = _of_sessions(sessions, wanted.metrics_of(_key_of(edition)))
            found.append(_of_records(edition, host, records, known, latest))
    return found


def of_result(name: str, result: ResultRecord, wanted: Wanted, note: list[str]) -> list[Observation]:
    """The observations of a result file.

    What decides nothing, was measured beside another server, or does not say what its workload was, is left out.

    Raises:
        UsageProblem: It does not name its host or its device.
    """
    seconds = _seconds(result.at or "")
    if seconds is None:
        note.append(f"{name} does not say when it was measured; it stands at the end, as it was named")
    place = [PurePosixPath(name).name, (result.commit or "")[:HASH_SHOWN], "" if seconds is None else _date_of(seconds)]
    found = []
    for load in loads_of(name, result):
        if not wanted.has(load.key):
            continue
        why = load.problems[0] if load.problems else f"it was measured beside {load.beside}" if load.beside else ""
        if why or load.workload is None:
            note.append(f"{name}: {load.key} is left out: {why or NO_WORKLOAD}")
            continue
        samples = max(load.samples.values(), key=len, default=())
        found.append(
            Observation(
                key=load.key,
                host=load.hosts[0],
                label=" ".join(filter(None, place)),
                commit=result.commit or "",
                seconds=seconds,
                workload=load.workload,
                device=load.devices[0],
                known=_of_load(load, wanted.metrics_of(load.key)),
                sessions=len(samples),
                taken=tuple(each.taken for each in samples)
                or (SessionId(load.hosts[0], occasion_of(name, result), ""),),
            )
        )
    return found


def drawn_once(results: Iterable[Observation], baselines: Iterable[Observation], note: list[str]) -> list[Observation]:
    """Results without those that a baseline keeps because their run recorded it, and without those named twice."""
    known: dict[LoadKey, list[SessionId]] = {}
    for each in baselines:
        known.setdefault(each.key, []).extend(each.taken)
    found = []
    for each in results:
        others = known.setdefault(each.key, [])
        if all(any(one.is_same(other) for other in others) for one in each.taken):
            note.append(f"{each.label}: {each.key} is left out: its sessions have a point already")
            continue
        others.extend(each.taken)
        found.append(each)
    return found


def in_order(baselines: Sequence[Observation], results: Sequence[Observation]) -> list[Observation]:
    """All observations by time; baselines keep the order of their commits, results without a time come last."""
    dated = [each for each in results if each.seconds is not None]
    both = sorted([*baselines, *dated], key=lambda each: each.seconds or 0.0)
    return [*both, *(each for each in results if each.seconds is None)]


def _date_of(seconds: float) -> str:
    """The day in UTC; empty where there is no such day."""
    try:
        return dt.datetime.fromtimestamp(seconds, tz=dt.timezone.utc).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return ""


def _key_of(edition: Edition) -> LoadKey:
    path, folder = PurePosixPath(edition.path), PurePosixPath(edition.folder)
    return baseline_key(path, folder, edition.name, edition.entry.sessions[-1].device.name)


def _of_records(
    edition: Edition, host: str, records: Sequence[SessionRecord], known: Mapping[str, MetricValue], seconds: float
) -> Observation:
    day = _date_of(edition.commit.seconds)
    return Observation(
        key=_key_of(edition),
        host=host,
        label=f"{edition.commit.hash[:HASH_SHOWN]} {day}".strip(),
        commit=edition.commit.hash,
        seconds=seconds,
        workload=edition.entry.workload,
        device=msgspec.to_builtins(records[-1].device),
        known=known,
        sessions=len(records),
        note=edition.entry.reason or "",
        anchors=_anchors(edition.entry, host),
        taken=tuple(SessionId(record.host.id, record.occasion, record.at) for record in records),
    )


def _of_sessions(sessions: Sequence[Session], metrics: Iterable[Metric]) -> dict[str, MetricValue]:
    # To merge windows is most of the work, and all quantiles of the latency are of the same ones.
    latencies = [merge(window.latency for window in session.windows) for session in sessions]
    found = {}
    for metric in metrics:
        try:
            if metric.quantile is None or metric.times != LATENCY:
                value = pooled_value(metric, sessions)
                each = [pooled_value(metric, [session]) for session in sessions]
            elif all(latency.total for latency in latencies):
                value = merge(latencies).quantile(metric.quantile)
                each = [latency.quantile(metric.quantile) for latency in latencies]
            else:
                continue
        except NotMeasured:
            continue
        found[metric.name] = _spread(value, each)
    return found


def _of_load(load: MeasuredLoad, metrics: Iterable[Metric]) -> dict[str, MetricValue]:
    return {
        metric.name: _spread(
            load.values[metric.name], [metric.value_at(each.y) for each in load.samples.get(metric.name, ())]
        )
        for metric in metrics
        if metric.name in load.values
    }


def _spread(value: float, each: Sequence[float]) -> MetricValue:
    return MetricValue(value) if len(each) < 2 else MetricValue(value, min(each), max(each))


def _anchors(entry: Entry, host: str) -> dict[str, str]:
    return {
        record.metric: _anchor(METRICS[record.metric], record.value, record.how, record.reason)
        for anchor in entry.anchors
        if anchor.host.id == host
        for record in anchor.metrics
        if record.metric in METRICS
    }


def _anchor(metric: Metric, value: float, how: str, reason: str) -> str:
    return f"anchor {how} at {format_value(value, metric.unit)}{f': {reason}' if reason else ''}"


def _seconds(at: str) -> float | None:
    try:
        # Python 3.10 does not read the letter that stands for UTC.
        moment = dt.datetime.fromisoformat(at.removesuffix("Z") + "+00:00" if at.endswith("Z") else at)
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
