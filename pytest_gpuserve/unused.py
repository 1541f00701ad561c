"""Entries of baseline files that nothing asks for any more: their tests or loads are gone, or have other names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuserve.items import COLLECTED, LEFT_OUT, measures, plain_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pytest

    from pytest_gpuserve.trial.ledger import Ledger
    from pytest_gpuserve.trial.measurement import Measurement


def all_was_run(session: pytest.Session) -> bool:
    """Whether an entry that nothing asked for is really unused: nothing was selected, failed or cut short.

    What the device is spared does not count as a selection of the user's; see `asking_tests`.

    A worker of pytest-xdist has run only some of the tests that it collected.
    """
    if hasattr(session.config, "workerinput"):
        return False
    kept = {item.nodeid for item in asking_tests(session)}
    selected = session.config.stash.get(COLLECTED, set()) - kept or any("::" in t for t in session.config.args)
    return not selected and not session.testsfailed and not session.shouldstop


def asking_tests(session: pytest.Session) -> Sequence[pytest.Item]:
    """The tests of a run with those that the device was spared, whose entries are used by whoever asks for them."""
    return (*session.items, *session.config.stash.get(LEFT_OUT, ()))


def settle_unused(
    items: Sequence[pytest.Item],
    measurements: Mapping[str, Sequence[Measurement]],
    ledger: Ledger,
    *,
    remove: bool,
    note: Callable[[str], None],
) -> None:
    """Tell which entries of the baseline files of a run nothing asked for, or remove them.

    Args:
        items: Its tests, with those that the device was spared.
        measurements: What they measured, by their ids.
        ledger: The baselines.
        remove: Whether such entries are removed.
        note: Told of each, in a line.

    Raises:
        BaselineUnusable: A file cannot be read or written.
    """
    used: dict[Path, set[str]] = {}
    for measured in measurements.values():
        for measurement in measured:
            used.setdefault(measurement.place.path, set()).add(measurement.place.key)
    # A test that was skipped before it measured, or left out, leaves its file undecided.
    for item in items:
        if measures(item) and not measurements.get(plain_id(item)):
            used.pop(ledger.place(plain_id(item), "").path, None)
    for path, keys in used.items():
        for key in ledger.unused(path, keys):
            if remove:
                ledger.remove(path, [key])
                note(f"{key}: unused, removed from {ledger.shown(path)}")
            else:
                note(f"{key}: unused in {ledger.shown(path)}; remove it with --baseline-update")
