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


@given(st.text(), st.text())
def test_whatever_was_written_it_is_one_line(found: str, log: str) -> None:
    """The line has no terminal escape sequences, and is never empty."""
    told = lost_in_mid_load(LoadFailed("it died", found=found, log_tail=log)).text
    assert told
    assert told.isprintable()
