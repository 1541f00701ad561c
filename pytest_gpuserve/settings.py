"""What was asked of a session, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.load.ray.address import EngineChoice
    from pytest_gpuserve.outputs import Output
    from pytest_gpuserve.store.elsewhere.address import Address


class Update(Enum):
    """What a run writes."""

    NOTHING = "nothing"
    MISSING = "missing entries"
    ALL = "all measured entries"

    @property
    def option(self) -> str:
        """The option that asks for it; empty where nothing is written."""
        return {Update.NOTHING: "", Update.MISSING: "--baseline-update-new", Update.ALL: "--baseline-update"}[self]


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked of this session.

    Args:
        gpu: ``auto``, ``cpu`` or a device's name.
        update: What is written.
        baseline_dir: Where baselines are, or the copy of those that are elsewhere.
        root: The project's root folder.
        missing_fails: Whether a missing baseline fails its test, or skips it.
        missing_asked: Whether that was asked for, rather than being the default.
        inconclusive_fails: Whether a verdict that could not be reached fails its test, or skips it.
        budget_seconds: Most measuring time of one test.
        outputs: The files that the results go into.
        artifacts_dir: Where tables and charts of the tests' own go; None for pytest's cache.
        full: Whether the published sizes are measured, whatever they take.
        load_engine: What makes the loads.
        baseline_address: Where baselines are in shared storage; None where they are in a folder.
        baseline_offline: Whether that storage is not asked, and the copy read as an earlier session left it.
        reason: Why an update may loosen a metric.
        record_sessions: Sessions that a recording takes of each load.
        foreign_cores: Cores that other processes may take while we measure.
        lock_wait_seconds: How long to wait for another session that measures on the device.
        ci: Whether this is a CI run.
        against: The git revision that every comparison with ``baseline`` is paired against; None for none.
        against_python: Absolute path of the interpreter whose packages it is paired against; None for none.
        confirm: Whether a paired run settles what the stored baseline leaves open.
        selftest_minutes: How long the self-test may take that is run instead of tests; None for none.
    """

    gpu: str
    update: Update
    baseline_dir: Path
    root: Path
    missing_fails: bool
    missing_asked: bool
    inconclusive_fails: bool
    budget_seconds: float
    outputs: tuple[Output, ...]
    reason: str | None
    record_sessions: int
    foreign_cores: float
    lock_wait_seconds: float
    ci: bool
    against: str | None = None
    against_python: str | None = None
    confirm: bool = True
    selftest_minutes: float | None = None
    artifacts_dir: Path | None = None
    full: bool = False
    load_engine: EngineChoice = "local"
    baseline_address: Address | None = None
    baseline_offline: bool = False

    @property
    def side_by_side(self) -> bool:
        """Whether ``baseline`` is measured beside each load, of another revision or packages, rather than stored."""
        return self.against is not None or self.against_python is not None
