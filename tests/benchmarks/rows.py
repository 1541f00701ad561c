"""The table of `docs/explanation/load_engine.md`: one row a fact; and how programs print theirs."""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
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

PACKAGES = ("nginx-light", "wrk", "hey")


@dataclass(frozen=True)
class Row:
    """One line.

    Args:
        what: The fact.
        ours: Our value, with its unit.
        peer: What it is compared with, and that value.
        ratio: Ours to theirs.
        spread: From the smallest to the largest, and of how many.
        target: What was promised; empty where nothing was.
        met: Whether it was kept; None where nothing was promised.
    """

    what: str
    ours: str
    peer: str
    ratio: str = ""
    spread: str = ""
    target: str = ""
    met: bool | None = None


@dataclass
class Table:
    """The rows of this session."""

    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Add a row; it is kept whatever becomes of the test."""
        self.rows.append(row)

    def compare(
        self,
        what: str,
        peer: str,
        found: Ratio,
        write: Callable[[float], str],
        *,
        least: float | None = None,
        most: float | None = None,
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
        bounds = [(">=", least), ("<=", most)]
        promised = [f"{sign} {bound:g}" for sign, bound in bounds if bound is not None]
        met = (least is None or found.median >= least) and (most is None or found.median <= most)
        self.add(
            Row(
                what,
                write(found.ours),
                f"{peer}: {write(found.peer)}",
                f"{found.median:.3f}",
                f"{found.low:.3f} to {found.high:.3f}, {found.pairs} pairs",
                ", ".join(promised),
                met if promised else None,
            )
        )
        return met

    def compare_seconds(
        self, what: str, peer: str, found: Ratio, *, least: float | None = None, most: float | None = None
    ) -> bool:
        """Add a comparison of durations; as ``compare``."""
        return self.compare(what, peer, found, format_seconds, least=least, most=most)

    def markdown(self) -> str:
        """Return the table, with the machine below it."""
        lines = [
            "| fact | pytest-gpuserve | compared with | ratio (median) | spread | promised | kept |",
            "|---|---|---|---|---|---|---|",
        ]
        kept = {None: "", True: "yes", False: "**no**"}
        lines += [
            f"| {row.what} | {row.ours} | {row.peer} | {row.ratio} | {row.spread} | {row.target} | {kept[row.met]} |"
            for row in self.rows
        ]
        return "\n".join([*lines, "", f"Measured on: {machine()}."])


def machine() -> str:
    """Name the machine and the versions of what was measured."""
    host = read_host()
    parts = [f"{host.cores} cores of {host.cpu}", f"Linux {host.kernel}", f"Python {platform.python_version()}"]
    query = shutil.which("dpkg-query")
    if query:
        command = [query, "--show", "--showformat=${Package} ${Version}\n", *PACKAGES]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        parts += asked.stdout.splitlines()
    return ", ".join(parts)


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
