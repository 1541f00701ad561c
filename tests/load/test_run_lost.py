"""A lost load is reported in one line, and once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.run import lost_in_mid_load
from pytest_gpuserve.verdict.reason import ReasonKind


@pytest.mark.parametrize(
    ("found", "log", "told"),
    [
        # By the last line of its log; without one, by its exit status.
        ("exit status 1", "noise\n\nMemoryError:\x1b[1m no\troom\n \n", "it died: MemoryError:\\x1b[1m no room"),
        ("exit status -9", "", "it died: exit status -9"),
        ("", "", "it died"),
        ("exit status 1", "see /tmp/session/worker-01ab.log", "it died: see /tmp/session/worker-01ab.log"),
    ],
)
def test_a_loss_here_is_told_with_how_the_engine_ended(found: str, log: str, told: str) -> None:
    """Once, after what was lost."""
    reason = lost_in_mid_load(LoadFailed("it died", found=found, log_tail=log))
    assert (reason.kind, reason.text) == (ReasonKind.LOAD_LOST, f"lost in mid-load: {told}")


@pytest.mark.parametrize(
    ("before", "last"),
    [
        ("", "10.0.0.1/worker-12 was lost as the load began: no news"),
        ("", "fd00::1/worker-0 was lost at the end of the load: no news"),
        ("lost in mid-load: ", "the clock of 10.0.0.1/worker-1 has drifted by 50.1 ms from this host's"),
        ("lost in mid-load: ", "when 10.0.0.1/worker-1 did what it reports is not known: its clock is unknown"),
        ("lost in mid-load: ", "10.0.0.1/worker-1: the load engine died (exit status -9)"),
        ("lost in mid-load: ", "10.0.0.1/worker-1 reported nothing for 15.0 s"),
    ],
)
def test_a_worker_elsewhere_that_failed_is_all_that_is_told(before: str, last: str) -> None:
    """The report omits the repeated loss and the end of the local engine."""
    died = LoadFailed("the load engine died", found="exit status 1", log_tail=f"noise\n\n{last}\n")
    assert lost_in_mid_load(died).text == f"{before}{last}"


@given(st.text(), st.text())
def test_whatever_was_written_it_is_one_line(found: str, log: str) -> None:
    """The line has no terminal escape sequences, and is never empty."""
    told = lost_in_mid_load(LoadFailed("it died", found=found, log_tail=log)).text
    assert told
    assert told.isprintable()
