"""Whether results are of one run: of the same code, on devices of one name, doing the same; and all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.report.names import some_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.merge.shard import Shard

NOT_TOLD: Final = "not told"

MODES: Final = {
    None: NOT_TOLD,
    "gate": "gating against stored baselines",
    "against": "side by side with another revision or interpreter",
    "update": "recording baselines",
    "update-new": "recording baselines that are missing",
}
"""What a run did, in words."""


def check_alike(shards: Sequence[Shard]) -> None:
    """Check that shards are of one run.

    Raises:
        UsageProblem: They are of different code, of devices of different names, or did something different; or one of
            those that there have to be is missing.
    """
    for shard in shards:
        if not _device(shard):
            raise UsageProblem(f"{shard.name} does not name the device that it was measured on")
    _check(
        shards,
        lambda shard: shard.head.commit or NOT_TOLD,
        "the results are not of the same code",
        "merge what was measured at one commit",
    )
    _check(
        shards, _device, "the results are not of devices of one name", "merge those of each device into one of its own"
    )
    _check(
        shards,
        lambda shard: MODES[shard.head.mode],
        "the results are not of runs that did the same",
        "merge those that gate, and not those that record or compare with something else",
    )
    _check_complete(shards)


def check_expected(names: Sequence[str], expected: int) -> None:
    """Check that there are as many shards as there should be.

    Args:
        names: What people call those that count.
        expected: How many there should be at least.

    Raises:
        UsageProblem: There are fewer.
    """
    if len(names) < expected:
        raise UsageProblem(
            f"--expect={expected}: there are only {len(names)} results, so not all tests were measured",
            found=", ".join(names) or "none",
            remedies=["look for the runner that has written none"],
        )


def remarks(shards: Sequence[Shard]) -> list[str]:
    """What of the shards differs, or is not known, and does not forbid to merge them; a line each."""
    heads = [shard.head for shard in shards]
    lines = []
    if len(shards) > 1 and heads[0].commit is None:
        lines.append("the code under test is not known: nobody can say that it was the same everywhere")
    if len(shards) > 1 and any(head.commit is not None and not head.clean for head in heads):
        lines.append("measured with changes that are not committed: nobody can say that they were the same everywhere")
    for name in sorted({name for head in heads for name in head.software}):
        versions = sorted({head.software.get(name, "none") for head in heads})
        if len(versions) > 1:
            lines.append(f"versions of {name} differ: {some_of(versions)}")
    return lines


def _device(shard: Shard) -> str:
    name = shard.head.gpu.get("name")
    return name if isinstance(name, str) else ""


def _check(shards: Sequence[Shard], fact: Callable[[Shard], str], problem: str, remedy: str) -> None:
    found: dict[str, list[str]] = {}
    for shard in shards:
        found.setdefault(fact(shard), []).append(shard.name)
    if len(found) > 1:
        raise UsageProblem(
            problem,
            found="\n".join(f"{value}: {some_of(names)}" for value, names in found.items()),
            remedies=[remedy],
        )


def _check_complete(shards: Sequence[Shard]) -> None:
    """Check the numbers of shards that have one: a runner that has broken down has written nothing."""
    numbered = {shard.head.shard.number for shard in shards if shard.head.shard is not None}
    if not numbered:
        return
    _check(
        shards,
        lambda shard: NOT_TOLD if shard.head.shard is None else f"one of {shard.head.shard.of}",
        "the results are not of one suite that was dealt out",
        "merge the results of one `--splits=N`",
    )
    of = next(shard.head.shard.of for shard in shards if shard.head.shard is not None)
    missing = [str(number) for number in range(1, of + 1) if number not in numbered]
    if missing:
        raise UsageProblem(
            f"of {of} results {len(missing)} {'are' if len(missing) > 1 else 'is'} missing, so not all tests were"
            " measured",
            found=f"no result of --group={some_of(missing)}",
            remedies=["look for the runner that has written none"],
        )
