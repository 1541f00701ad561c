"""The table of `docs/explanation/load_engine.md`: one row a fact; and how programs print theirs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import rich.box
import rich.console
import rich.table

from pytest_gpuserve.device.host import read_host
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.benchmarks.pairs import Ratio

WIDTH = 260
"""Lines of a table are not folded, so that it can be pasted as Markdown."""

HEADER = ("fact", "pytest-gpuserve", "compared with", "ratio (median)", "spread", "promised", "kept")


@dataclass
class Table:
    """The rows of this session."""

    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(
        self, what: str, ours: str, peer: str, *, ratio: str = "", spread: str = "", promised: str = "", kept: bool
    ) -> bool:
        """Add a row, whatever becomes of the test; returns whether its promise was kept."""
        self.rows.append((what, ours, peer, ratio, spread, promised, "yes" if kept else "**no**"))
        return kept

    def compare(
        self,
        what: str,
        peer: str,
        found: Ratio,
        write: Callable[[float], str] = format_seconds,
        *,
        least: float = 0.0,
        most: float = float("inf"),
    ) -> bool:
        """Add a comparison, and tell whether its median ratio is within the bounds.

        Args:
            what: The fact.
            peer: Whom ours is compared with.
            found: The ratios.
            write: Makes text of a value.
            least: Smallest ratio that keeps the promise.
            most: Largest one.
        """
        return self.add(
            what,
            write(found.ours),
            f"{peer}: {write(found.peer)}",
            ratio=f"{found.median:.3f}",
            spread=f"{found.low:.3f} to {found.high:.3f}, {found.pairs} pairs",
            promised=f"{least:g} to {most:g}",
            kept=least <= found.median <= most,
        )

    def show(self) -> None:
        """Print the table, with the machine below it."""
        host = read_host()
        show(rich_table(HEADER, self.rows, words=HEADER), f"Measured on: {host.cores} cores of {host.cpu}.")


def rich_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, words: Sequence[str] = (), title: str | None = None
) -> rich.table.Table:
    """A table for people that is Markdown too; columns are of numbers but for those of words."""
    table = rich.table.Table(title=title, box=rich.box.MARKDOWN, title_style="")
    for name in header:
        table.add_column(name, justify="left" if name in words else "right", no_wrap=name in words)
    for row in rows:
        table.add_row(*row)
    return table


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser of a program's arguments, which tells its module's text as it stands there."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def show(*parts: str | rich.table.Table) -> None:
    """Print, to be pasted."""
    console = rich.console.Console(width=WIDTH)
    for part in parts:
        console.print(part)
