"""A still picture of a terminal: ``pytest ... --color=yes | python -m tests.docs.terminal_picture FILE.svg``.

Lines of the failing test's own source are left out, and so is what pytest says of its plugins.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 120
LEFT_OUT = re.compile(
    r"(platform|benchmark:|rootdir:|plugins:|server logs:|FAILED) |E +(metrics that|did not|\.\.\.|$)"
)


def picture(output: str) -> str:
    """Return an SVG that needs no network."""
    console = Console(record=True, width=COLUMNS, file=Path("/dev/null").open("w"), force_terminal=True)  # noqa: SIM115
    source = False
    for line in output.splitlines():
        text = Text.from_ansi(line.rstrip())
        plain = text.plain
        source = (source or plain.startswith("____")) and not plain.startswith("E  ")
        if source or not plain.strip() or LEFT_OUT.match(plain):
            continue
        text.truncate(COLUMNS)
        console.print(text, no_wrap=True)
    svg = console.export_svg(title="pytest suites/app --against=HEAD")
    return re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(sys.stdin.read()), encoding="utf-8")
