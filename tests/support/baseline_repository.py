"""Git repositories with baselines of known speeds, and result files, for the tests of what reads them."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.measure.rounds import reduced_by_metric
from pytest_gpuserve.report.result_json import document
from pytest_gpuserve.report.results import RunResult, SessionResult, TestResult
from pytest_gpuserve.store.anchor import checksummed
from pytest_gpuserve.store.baseline import write
from pytest_gpuserve.store.schema import AnchoredRecord, AnchorRecord, Entry
from tests.support.builders import COMMIT, YARDSTICK, here, session, start, window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_gpuserve.measure.window import Session

FILE = "x/test_y.json"
TEST = "test_z[1]"
NODEID = f"suites/x/test_y.py::{TEST}"
WORKLOAD = {"server": "mosec", "concurrency": "50"}

STEADY = (1.0, 1.002, 0.998, 1.001)
"""Speeds of sessions of one build, enough of them to gate all metrics."""


def session_of_speed(
    speed: float, *, day: int = 1, number: int = 0, requests: int = 600, cold_start_seconds: float = 1.5
) -> Session:
    """A session whose requests all take 10 ms over its speed; of two starts of two windows."""
    latencies = (0.010 / speed,) * requests
    part = window(latencies, seconds=requests / (1000.0 * speed), items=4 * requests, batches=requests)
    at = f"2025-01-{day:02d}T00:00:{number:02d}+00:00"
    return session(*(start(part, part, cold_start_seconds=cold_start_seconds) for _ in range(2)), at=at)


def entry_of(
    speeds: Sequence[float] = STEADY,
    *,
    day: int = 1,
    host: str = "host-a",
    workload: Mapping[str, str] | None = None,
    reason: str | None = None,
    requests: int = 600,
    cold_start_seconds: float = 1.5,
) -> Entry:
    """The entry of sessions of these speeds, measured on a day of January."""
    where = here(host)
    sessions = [
        session_of_speed(speed, day=day, number=number, requests=requests, cold_start_seconds=cold_start_seconds)
        for number, speed in enumerate(speeds)
    ]
    return Entry(
        workload=dict(WORKLOAD if workload is None else workload),
        information={"app_sha256": "ab" * 32},
        commit=COMMIT,
        clean=True,
        code=COMMIT,
        reason=reason,
        sessions=[
            msgspec.structs.replace(where.session_record(each), occasion=f"2025-01-{day:02d}T00:00:00+00:00")
            for each in sessions
        ],
    )


def anchored_on(entry: Entry, *metrics: str) -> Entry:
    """The entry with anchors of these metrics, as its test's recording would have set them; each 1000 in its unit."""
    record = entry.sessions[0]
    anchor = AnchorRecord(
        at=record.occasion,
        commit=entry.commit,
        clean=True,
        code=entry.code,
        host=record.host,
        device=record.device,
        software={},
        metrics=[
            AnchoredRecord(name, 1000.0, METRICS[name].unit, sessions=1, occasions=1, how="recorded", seal="0" * 12)
            for name in metrics
        ],
    )
    return msgspec.structs.replace(entry, anchors=[checksummed(anchor)])


def on_device(entry: Entry, **facts: object) -> Entry:
    """The entry as it would be of another device."""
    return msgspec.structs.replace(
        entry,
        sessions=[
            msgspec.structs.replace(record, device=msgspec.structs.replace(record.device, **facts))
            for record in entry.sessions
        ],
    )


def result_text(
    speeds: Sequence[float] = STEADY,
    *,
    day: int = 2,
    host: str = "host-a",
    nodeid: str = NODEID,
    samples: bool = True,
    **more: Any,  # noqa: ANN401 -- fields of the document
) -> str:
    """A result file of a run of these sessions, as ``--gpuserve-json`` writes it; ``more`` goes into its run.

    It began when the entry of that day says that its run did.
    """
    sessions = tuple(session_of_speed(speed, day=day, number=number) for number, speed in enumerate(speeds))
    server = {"server": "mosec", "app_sha256": "cd" * 32}
    run = RunResult("", sessions, (), {"concurrency": "50"}, server, workload=WORKLOAD, yardstick=YARDSTICK)
    plain = json.loads(document(SessionResult({"name": "cpu"}, {"id": host}, (TestResult(nodeid, "passed", [run]),))))
    points = {name: [asdict(each) for each in found] for name, found in reduced_by_metric(sessions).items()}
    plain["tests"][0]["run"].update({"points": points if samples else {}, **more})
    plain["at"] = f"2025-01-{day:02d}T00:00:00+00:00"
    return json.dumps(plain)


SETTINGS = (
    *("user.name=A", "user.email=a@example.invalid", "commit.gpgsign=false", "core.abbrev=40"),
    # Nobody needs these repositories after a crash, or small: git neither waits for the disk nor starts a second git.
    *("core.fsync=none", "maintenance.auto=false"),
)


class BaselineRepository:
    """A git repository with a folder of baselines.

    Args:
        root: Where it is, or is made.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.baselines = root / "baselines"
        root.mkdir(parents=True, exist_ok=True)
        if not (root / ".git").exists():
            self.git("init", "--quiet", "--template=", "--initial-branch=main")

    def git(self, *arguments: str, day: int = 1) -> str:
        """Run git as somebody, on a day of January; its output."""
        date = f"2025-01-{day:02d}T12:00:00+00:00"
        command = ["git", *(word for setting in SETTINGS for word in ("-c", setting)), "-C", str(self.root), *arguments]
        done = subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            env={
                "GIT_COMMITTER_DATE": date,
                "GIT_AUTHOR_DATE": date,
                "PATH": os.environ["PATH"],
                "HOME": str(self.root),
            },
        )
        return done.stdout.strip()

    def write(self, entries: Mapping[str, Entry], file: str = FILE, device: str = "cpu") -> Path:
        """Write a baseline file; none where there are no entries."""
        path = self.baselines / device / file
        write(path, entries)
        return path

    def commit(self, day: int = 1) -> str:
        """Commit all there is, on a day of January; the full hash."""
        self.git("add", "--all")
        told = self.git("commit", "--allow-empty", "--message", "change", day=day)
        return told.partition("]")[0].rpartition(" ")[2]

    def record(self, entry: Entry, day: int, *, test: str = TEST, file: str = FILE) -> str:
        """Commit a baseline of one test; the full hash."""
        self.write({test: entry}, file)
        return self.commit(day)
