"""A stored verdict and the one side by side with its commit: which of them counts, and why it cannot be had."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from pytest_gpuserve.comparison.confirming import Unconfirmed, changes_since, make_confirmation, settled
from pytest_gpuserve.device import Card
from pytest_gpuserve.errors import GpuserveError, NotInRevision, ServerFailed
from pytest_gpuserve.experiment.worktree import Opponent, Opponents
from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.servers.relocation import Relocation
from pytest_gpuserve.store.baseline import Stored
from tests.support.builders import COMMIT, entry, here, judgement

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpuserve.comparison.arena import Arena, Contest
    from pytest_gpuserve.comparison.side_by_side import SideBySide
    from pytest_gpuserve.store.schema import Entry

CHANGED = ("torch 2.8.0 -> 2.9.1",)
PASSING = (Verdict.PASS, Verdict.IMPROVED)
SCREENED = (Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.MISSING)
UNKNOWN = (Verdict.INCONCLUSIVE, Verdict.INVALID, Verdict.MISSING)


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


@pytest.mark.parametrize("stored", SCREENED)
@pytest.mark.parametrize("changed", [(), CHANGED])
def test_a_regression_beside_the_commit_is_one(stored: Verdict, changed: tuple[str, ...]) -> None:
    """Whatever else has changed: the code alone makes it worse."""
    final = settled(stored_verdict(stored), paired_verdict(Verdict.REGRESSED), changed)
    assert (final.verdict, final.reference_kind) == (Verdict.REGRESSED, "against")


@pytest.mark.parametrize("paired", PASSING)
@pytest.mark.parametrize("stored", [Verdict.REGRESSED, Verdict.INCONCLUSIVE])
def test_a_pass_beside_the_commit_does_not_clear_changed_packages(stored: Verdict, paired: Verdict) -> None:
    """Both sides run with the new packages, so what these cost is not seen: it stays as it is, and says what helps."""
    final = settled(stored_verdict(stored), paired_verdict(paired), CHANGED)
    assert (final.verdict, final.reference_kind) == (stored, "baseline")
    text = " ".join(final.reasons)
    assert all(part in text for part in (str(paired), *CHANGED, "--against-python="))


def test_a_pass_that_only_saw_the_code_says_so() -> None:
    """Of another host's baseline the code decides, and what both sides share is named."""
    final = settled(stored_verdict(Verdict.MISSING), paired_verdict(Verdict.PASS), CHANGED)
    assert final.verdict is Verdict.PASS
    assert any("only the code" in reason and CHANGED[0] in reason for reason in final.reasons)


@pytest.mark.parametrize("stored", SCREENED)
@pytest.mark.parametrize("paired", UNKNOWN)
@pytest.mark.parametrize("changed", [(), CHANGED])
def test_what_is_not_settled_stays_with_its_reason(stored: Verdict, paired: Verdict, changed: tuple[str, ...]) -> None:
    """A paired run without a verdict changes nothing and passes nothing; why it has none is told."""
    final = settled(stored_verdict(stored), paired_verdict(paired), changed)
    assert (final.verdict, final.reference_kind) == (stored, "baseline")
    assert any(str(paired) in reason and "not settled" in reason for reason in final.reasons)
    assert "as measured" in final.reasons


@pytest.mark.parametrize("stored", SCREENED)
@pytest.mark.parametrize("paired", Verdict)
@pytest.mark.parametrize("changed", [(), CHANGED])
def test_nothing_passes_that_did_not_pass_side_by_side(
    stored: Verdict, paired: Verdict, changed: tuple[str, ...]
) -> None:
    """Of all combinations only a passing paired verdict makes the outcome pass."""
    assert not settled(stored_verdict(stored), paired_verdict(paired), changed).verdict.passes or paired.passes


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
class FakeArena:
    """An arena that notes whom it compares with."""

    opponents: Opponents
    problem: GpuserveError | None = None
    compared: list[Opponent] = field(default_factory=list)

    def compare_builds(self, contest: Contest, opponent: Opponent) -> SideBySide:
        """See `Arena`."""
        if self.problem is not None:
            raise self.problem
        self.compared.append(opponent)
        return cast("SideBySide", "the comparison")


class FakeOpponents(Opponents):
    """Opponents without git."""

    def find(self, *, revision: str | None, python: str | None, called: str = "") -> Opponent:
        """See `Opponents`."""
        assert python is None
        return Opponent(called, str(revision), Relocation(checkout=self._root))


def confirm(made: Entry, arena: FakeArena) -> SideBySide:
    """Make the confirmation of a baseline ready."""
    return make_confirmation(cast("Arena", arena), cast("Contest", None), Stored(made, ()))


def git(folder: Path, *words: str) -> str:
    """Run git as somebody, without anybody's settings."""
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *words],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    return done.stdout.strip()


def commits(folder: Path, count: int) -> list[str]:
    """A repository with so many commits, oldest first."""
    folder.mkdir()
    git(folder, "init", "--quiet")
    made = []
    for number in range(count):
        (folder / "app.py").write_text(f"VERSION = {number}\n")
        git(folder, "add", "app.py")
        git(folder, "commit", "--quiet", "-m", str(number))
        made.append(git(folder, "rev-parse", "HEAD"))
    return made


def test_the_commit_of_the_baseline_is_compared_with(tmp_path: Path) -> None:
    """Not another revision, nor another interpreter."""
    arena = FakeArena(FakeOpponents(tmp_path))
    assert confirm(entry(), arena) == cast("SideBySide", "the comparison")
    (opponent,) = arena.compared
    assert opponent.identity == COMMIT
    assert "baseline's commit" in opponent.name


def test_a_baseline_without_a_commit_cannot_be_confirmed(tmp_path: Path) -> None:
    """What was recorded outside of git names no code."""
    with pytest.raises(Unconfirmed, match="names no commit"):
        confirm(entry(commit=None), FakeArena(FakeOpponents(tmp_path)))


def test_a_baseline_of_a_dirty_checkout_cannot_be_confirmed(tmp_path: Path) -> None:
    """Its commit is not what was measured, and the error says how to record one that is."""
    dirty = msgspec.structs.replace(entry(), clean=False)
    with pytest.raises(Unconfirmed, match="uncommitted changes") as caught:
        confirm(dirty, FakeArena(FakeOpponents(tmp_path)))
    assert COMMIT[:12] in str(caught.value)
    assert "--baseline-update" in str(caught.value)


def test_a_shallow_clone_says_how_to_get_the_commit(tmp_path: Path) -> None:
    """The commit is not there, and the reason names the commands that bring it."""
    first, _ = commits(tmp_path / "origin", 2)
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{tmp_path / 'origin'}", "clone")
    arena = FakeArena(Opponents(tmp_path / "clone"))
    with pytest.raises(Unconfirmed, match="could not be settled side by side") as caught:
        confirm(entry(commit=first), arena)
    assert "fetch --unshallow" in str(caught.value)
    assert "fetch-depth: 0" in str(caught.value)
    assert arena.compared == []


def test_a_folder_without_git_says_so(tmp_path: Path) -> None:
    """A baseline that names a commit cannot be confirmed in an unpacked archive."""
    with pytest.raises(Unconfirmed, match="needs git"):
        confirm(entry(), FakeArena(Opponents(tmp_path)))


@pytest.mark.parametrize("problem", [NotInRevision("it has no app.py"), ServerFailed("an interpreter does not answer")])
def test_what_the_commit_does_not_have_is_a_reason(tmp_path: Path, problem: GpuserveError) -> None:
    """A server or app that is not in that commit, or an interpreter that is gone, is said in its own words."""
    with pytest.raises(Unconfirmed) as caught:
        confirm(entry(), FakeArena(FakeOpponents(tmp_path), problem))
    assert problem.summary in str(caught.value)
