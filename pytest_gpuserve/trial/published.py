"""A published number as a test holds it: ``run.throughput >= published(system="mosec").throughput``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.store.published import NothingPublished, read_published, select, suites
from pytest_gpuserve.trial.assertions import Comparison, Reference
from pytest_gpuserve.trial.sides import Sides
from pytest_gpuserve.units import format_value

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.gate.verdict import ReferenceKind
    from pytest_gpuserve.store.published import PublishedEntry
    from pytest_gpuserve.trial.assertions import Run

SUITES: Final = "suites"
"""Folder of suites in a project: each has its name below it."""


@dataclass(frozen=True, eq=False, repr=False)
class PublishedReference(Reference):
    """A metric that was printed.

    Args:
        metric: Which metric.
        entry: Where it was printed, with its value.
    """

    kind: ClassVar[ReferenceKind] = "published"

    entry: PublishedEntry = field(repr=False)

    @property
    def value(self) -> float:
        """What was printed, in the metric's unit."""
        return self.entry.record.values[self.metric.name]

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"{super().__repr__()} {format_value(self.value, self.metric.unit)}"

    def compared(self, run: Run) -> Comparison:
        """See `Reference`."""
        return run.judge.against_published(run, self.metric, self.entry)


class Published(Sides[PublishedReference]):
    """What was published of one measurement; its metrics are compared with those of a run.

    Args:
        entry: What was printed, as the file has it.
    """

    def __init__(self, entry: PublishedEntry) -> None:
        super().__init__(self._reference)
        self.entry = entry

    def __repr__(self) -> str:
        return f"Published({self.entry})"

    def _reference(self, metric: Metric) -> PublishedReference:
        values = self.entry.record.values
        if metric.name not in values:
            printed = [name for name in values if name in METRICS]
            raise UsageProblem(
                f"{metric.name} was not printed in {self.entry}",
                found=f"printed: {', '.join(printed)}" if printed else "no metric of a run was printed there",
                remedies=["gate it against a baseline of your own: baseline." + metric.name],
            )
        return PublishedReference(metric, self.entry)


def find_published(
    folder: Path, device: str, suite: str | None, path: Path, wanted: Mapping[str, object]
) -> Published | NothingPublished:
    """Find the published numbers that a test asks for.

    Args:
        folder: Of baselines.
        device: The device of this session.
        suite: The suite; None for that of the test's file.
        path: The test's file, relative to the project's root.
        wanted: Keywords that narrow the entries down to one.

    Raises:
        UsageProblem: There is no such suite or keyword, or several entries are left.
        BaselineUnusable: A file cannot be read or trusted.
    """
    name = suite_of(path) if suite is None else suite
    entries = read_published(folder, name)
    if entries:
        found = select(entries, device, name, wanted)
        return found if isinstance(found, NothingPublished) else Published(found)
    known = suites(folder)
    if not known:
        return NothingPublished(f"no number was published for {device} in {name}: {folder} has none at all")
    raise UsageProblem(
        f"published(...): no numbers were published for the suite {name!r}",
        looked=[str(folder / "*" / "published" / f"{name}.json")],
        remedies=[f"there are: {', '.join(known)}; name one with published(suite=...)"],
    )


def suite_of(path: Path) -> str:
    """The suite of a test's file: ``suites/tft/test_online.py`` is of ``tft``.

    Raises:
        UsageProblem: The file does not lie in a folder below ``suites``.
    """
    parts = path.parts
    if len(parts) < 3 or parts[0] != SUITES:
        raise UsageProblem(
            f"published(...): {path} lies in no folder below {SUITES}/, whose name would be the suite",
            remedies=["name it: published(suite='distilbert', ...)"],
        )
    return parts[1]
