"""Facts about collected tests: their ids, and which of them measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pytest_gpuserve.compare.baseline_store import BaselineStore
    from pytest_gpuserve.compare.measurement import Measurement


def all_was_run(session: pytest.Session) -> bool:
    """Whether an unrequested entry is really unused: the run had no selection, failure or early end.

    Left out published sizes are not a selection by the user; see `all_tests`.
    """
    kept = {item.nodeid for item in all_tests(session)}
    selected = session.config.stash.get(COLLECTED, set()) - kept or any("::" in t for t in session.config.args)
    return not selected and not session.testsfailed and not session.shouldstop


def all_tests(session: pytest.Session) -> Sequence[pytest.Item]:
    """Tests of a run and the published sizes that were left out, whose entries ``--gpuserve-full`` uses."""
    return (*session.items, *session.config.stash.get(LEFT_OUT, ()))


def settle_unused(
    items: Sequence[pytest.Item],
    measurements: Mapping[str, Sequence[Measurement]],
    baseline_store: BaselineStore,
    *,
    remove: bool,
    note: Callable[[str], None],
) -> None:
    """Report unused entries of a run's baseline files, or remove them.

    Args:
        items: Tests of the run, with the published sizes that were left out.
        measurements: Measurements by test id.

    Raises:
        BaselineUnusable: A file cannot be read or written.
    """
    used: dict[Path, set[str]] = {}
    for measured in measurements.values():
        for measurement in measured:
            used.setdefault(measurement.baseline_key.path, set()).add(measurement.baseline_key.entry)
        # A test that was skipped before it measured, or left out, leaves its file undecided.
    for item in items:
        if measures(item) and not measurements.get(item.nodeid):
            used.pop(baseline_store.key_of(item.nodeid, "").path, None)
    for path, keys in used.items():
        for key in baseline_store.unused(path, keys):
            if remove:
                baseline_store.remove(path, [key])
                note(f"{key}: unused, removed from {path}")
            else:
                note(f"{key}: unused in {path}; remove it with --baseline-update")


COLLECTED: Final = pytest.StashKey[set[str]]()
"""Ids of all collected tests, before any selection."""

LEFT_OUT: Final = pytest.StashKey[tuple[pytest.Item, ...]]()
"""Tests of published sizes, which pytest-gpuserve deselected itself."""

MEASURING: Final = "_gpuserve_measuring"
"""Base fixture of all measuring fixtures. pytest lists it among a test's fixtures only if the test's ``load`` is ours,
not a fixture of that name in the project."""

NEEDS_DEVICE: Final = "_gpuserve_session"
"""Base fixture of the fixtures that need the device's name."""


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def measures(item: pytest.Item) -> bool:
    """Whether a test measures, so that it needs the device for itself."""
    return MEASURING in getattr(item, "fixturenames", ())


def needs_device(item: pytest.Item) -> bool:
    """Whether a test needs the device's name."""
    return NEEDS_DEVICE in getattr(item, "fixturenames", ())
