"""A stored verdict and the one side by side with its commit: which of them counts, and why it cannot be had."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from pytest_gpuserve.device import Card
from pytest_gpuserve.errors import GpuserveError, NotInRevision, ServerFailed
from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.servers.relocation import Relocation
from pytest_gpuserve.store.baseline import Stored
from pytest_gpuserve.trial.confirming import Unconfirmed, changes_since, make_confirmation, settled
from pytest_gpuserve.trial.opponents import Opponent, Opponents
from tests.support.builders import COMMIT, entry, here, judgement
from tests.support.plain_git import git, only_below

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpuserve.store.schema import Entry
    from pytest_gpuserve.trial.arena import Arena, Contest
    from pytest_gpuserve.trial.side_by_side import SideBySide

CHANGED = ("torch 2.8.0 -> 2.9.1",)
PASSING = (Verdict.PASS, Verdict.IMPROVED)
SCREENED = (Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.MISSING)


def stored_verdict(verdict: Verdict) -> Judgement:
    """What a stored baseline says."""
    return judgement(verdict)


def paired_verdict(verdict: Verdict) -> Judgement:
    """What its commit, side by side, says."""
    return judgement(verdict, kind="against", reasons=("as measured",))


# -- which of them counts


@pytest.mark.parametrize("stored", SCREENED)
@pytest.mark.parametrize("paired", PASSING)
def test_a_pass_beside_the_commit_settles_it(stored: Verdict, paired: Verdict) -> None:
    """With all else unchanged the paired verdict counts, and what the stored one was is told with it."""
    final = settled(stored_verdict(stored), paired_verdict(paired), ())
    assert (final.verdict, final.reference_kind) == (paired, "against")
    assert stored is Verdict.MISSING or any(str(stored) in reason for reason in final.reasons)
    assert any("side by side" in reason for reason in final.reasons)


@pytest.mark.parametrize("paired", PASSING)
@pytest.mark.parametrize("stored", [Verdict.REGRESSED, Verdict.INCONCLUSIVE])
def test_a_pass_beside_the_commit_does_not_clear_changed_packages(stored: Verdict, paired: Verdict) -> None:
    """Both sides run with the new packages, so what these cost is not seen: it stays as it is, and says what helps."""
    final = settled(stored_verdict(stored), paired_verdict(paired), CHANGED)
    assert (final.verdict, final.reference_kind) == (stored, "baseline")
    assert all(part in " ".join(final.reasons) for part in (str(paired), *CHANGED, "--against-python="))


def test_a_pass_that_only_saw_the_code_says_so() -> None:
    """Of another host's baseline the code decides, and what both sides share is named."""
    final = settled(stored_verdict(Verdict.MISSING), paired_verdict(Verdict.PASS), CHANGED)
    assert final.verdict is Verdict.PASS
    assert any("only the code" in reason and CHANGED[0] in reason for reason in final.reasons)


@pytest.mark.parametrize("stored", SCREENED)
@pytest.mark.parametrize("changed", [(), CHANGED])
@pytest.mark.parametrize("paired", Verdict)
def test_nothing_passes_that_did_not_pass_side_by_side(
    stored: Verdict, paired: Verdict, changed: tuple[str, ...]
) -> None:
    """REGRESSED counts whatever else has changed; without a verdict beside the commit the stored one stays, and why."""
    final = settled(stored_verdict(stored), paired_verdict(paired), changed)
    if paired is Verdict.REGRESSED:
        assert (final.verdict, final.reference_kind) == (Verdict.REGRESSED, "against")
    elif not paired.passes:
        assert (final.verdict, final.reference_kind) == (stored, "baseline")
        assert any(str(paired) in reason and "not settled" in reason for reason in final.reasons)
        assert "as measured" in final.reasons
    assert not final.verdict.passes or paired.passes


# -- what has changed since


def recorded(**changes: Any) -> Stored:  # noqa: ANN401 -- fields of a session record
    """A baseline of two sessions, the last of which was recorded under other circumstances."""
    made = entry()
    last = msgspec.structs.replace(made.sessions[0], **changes)
    return Stored(msgspec.structs.replace(made, sessions=[made.sessions[0], last]), ())


@pytest.mark.parametrize(
    ("software", "expected"),
    [
        ({"python": "3.11.9"}, ()),
        ({"python": "3.11.8"}, ("python 3.11.8 -> 3.11.9",)),
        ({"python": "3.11.9", "torch": "2.8"}, ("torch 2.8 -> absent",)),
        ({}, ("python absent -> 3.11.9",)),
    ],
)
def test_changed_packages_are_named(software: Mapping[str, str], expected: tuple[str, ...]) -> None:
    """A package that is another, gone or new since the last recorded session is a change."""
    assert changes_since(recorded(software=software), here()) == expected


def test_a_changed_driver_is_named() -> None:
    """So is the driver, its CUDA version and the power limit of the card."""
    where = here()
    card = Card(
        index=0,
        product="NVIDIA X",
        name="X",
        uuid="GPU-1",
        pci_bus_id="00000000:3B:00.0",
        memory_bytes=None,
        driver="560.1",
        cuda="12.6",
        power_limit_watts=300.0,
        max_sm_clock_mhz=None,
        mig=None,
    )
    where = replace(where, device=replace(where.device, card=card))
    record = where.device_record()
    assert changes_since(recorded(device=record), where) == ()
    other = msgspec.structs.replace(record, driver="550.9", cuda="12.4", power_limit_watts=250.0)
    assert changes_since(recorded(device=other), where) == (
        "driver 550.9 -> 560.1",
        "cuda 12.4 -> 12.6",
        "power_limit_watts 250.0 -> 300.0",
    )


# -- why it cannot be had


@dataclass
class Beside:
    """An arena that notes whom it compares with, and opponents without git, unless others are given."""

    root: Path
    opponents: Opponents | None = None
    problem: GpuserveError | None = None
    compared: list[Opponent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.opponents = self.opponents or FakeOpponents(self.root)

    def compare_builds(self, contest: Contest, opponent: Opponent) -> SideBySide:
        """See `Arena`."""
        if self.problem is not None:
            raise self.problem
        self.compared.append(opponent)
        return cast("SideBySide", "the comparison")

    def confirm(self, made: Entry) -> SideBySide:
        """Make the confirmation of a baseline ready."""
        return make_confirmation(cast("Arena", self), cast("Contest", None), Stored(made, ()))


class FakeOpponents(Opponents):
    """Opponents without git."""

    def find(self, *, revision: str | None, python: str | None, called: str = "") -> Opponent:
        """See `Opponents`."""
        assert python is None
        return Opponent(called, str(revision), Relocation(checkout=self._root))


def test_the_commit_of_the_baseline_is_compared_with(tmp_path: Path) -> None:
    """Not another revision, nor another interpreter."""
    arena = Beside(tmp_path)
    assert arena.confirm(entry()) == cast("SideBySide", "the comparison")
    (opponent,) = arena.compared
    assert opponent.identity == COMMIT
    assert "baseline's commit" in opponent.name


def test_a_shallow_clone_says_how_to_get_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is not there, and the reason names the commands that bring it."""
    only_below(tmp_path, monkeypatch)
    origin = tmp_path / "origin"
    git(tmp_path, "init", "--quiet", "origin")
    for number in range(2):
        git(origin, "commit", "--quiet", "--allow-empty", f"--message={number}")
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{origin}", "clone")
    arena = Beside(tmp_path, Opponents(tmp_path / "clone"))
    with pytest.raises(Unconfirmed, match="could not be settled side by side") as caught:
        arena.confirm(entry(commit=git(origin, "rev-parse", "HEAD~1")))
    assert "fetch --unshallow" in str(caught.value)
    assert "fetch-depth: 0" in str(caught.value)
    assert arena.compared == []


def test_what_the_commit_does_not_have_is_a_reason(tmp_path: Path) -> None:
    """Code without a commit, or with changes on top, with what helps; no git; a server or interpreter that is gone."""
    dirty = msgspec.structs.replace(entry(), clean=False)
    for arena, made, words in (
        (Beside(tmp_path), entry(commit=None), ["names no commit"]),
        (Beside(tmp_path), dirty, ["uncommitted changes", COMMIT[:12], "--baseline-update"]),
        (Beside(tmp_path, Opponents(tmp_path)), entry(), ["needs git"]),
        (Beside(tmp_path, problem=NotInRevision("it has no app.py")), entry(), ["it has no app.py"]),
        (Beside(tmp_path, problem=ServerFailed("it does not answer")), entry(), ["it does not answer"]),
    ):
        with pytest.raises(Unconfirmed) as caught:
            arena.confirm(made)
        assert all(each in str(caught.value) for each in words)
