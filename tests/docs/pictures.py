"""The pictures of the pages: ``python -m tests.docs.pictures``, which takes some minutes.

One plot is made of the simulation that ``tests/verdict/test_power.py`` counts. The flow chart has the questions that
lead to a verdict, in their order. The terminal, the report and the comment come from one real run: the red one of the
first tutorial, on this machine's CPU. The last two need chromium and a font of emoji: ``apt-get install chromium
fonts-noto-color-emoji``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import matplotlib as mpl
from markdown_it import MarkdownIt
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from PIL import Image, ImageChops
from rich.console import Console
from rich.text import Text

from pytest_gpuserve.verdict.verdict import Verdict
from tests.docs.test_pages import GIT, TUTORIALS, run
from tests.fakes.simulated import TYPICAL, comparisons, outcome

PICTURES: Final = Path(__file__).resolve().parents[2] / "pytest_gpuserve/docs/pictures"

# -- plots

COUNT: Final = 400
SLOWDOWNS: Final = tuple(step / 200 for step in range(17))
COLOURS: Final = {"passes": "#2e9d5c", "INCONCLUSIVE": "#cc7a00", "REGRESSED": "#d9483b"}


def draw_told(axes: Axes) -> None:
    """Outcomes of builds of one machine, by their real slowdown."""
    pairs = comparisons(TYPICAL, COUNT)
    shares: dict[str, list[float]] = {name: [] for name in COLOURS}
    for slowdown in SLOWDOWNS:
        counts = dict.fromkeys(COLOURS, 0)
        for pair in pairs:
            verdict = outcome(pair.slowed(slowdown)).verdict
            counts["REGRESSED" if verdict is Verdict.REGRESSED else "passes" if verdict.passes else "INCONCLUSIVE"] += 1
        for name, count in counts.items():
            shares[name].append(count / COUNT)
    axes.stackplot([100 * each for each in SLOWDOWNS], *shares.values(), labels=list(COLOURS), colors=COLOURS.values())
    axes.axvline(5, color="white", linestyle=":")
    axes.set(xlabel="the build is really slower by, %", ylabel="share of the comparisons", xlim=(0, 8), ylim=(0, 1))
    axes.legend(loc="center right")


QUESTIONS: Final = (
    ("Is there a base?\n(an entry, or --against)", "no", "MISSING"),
    ("Do stored numbers prove 'within tolerance'?\n(only on a GPU, unchanged, host as fast)", "yes", "PASS"),
    ("Can the base run beside the candidate?", "no", "INCONCLUSIVE; on a GPU\nstored numbers decide"),
    ("One more round, beside the base.\nIs it sound, also on a second try?", "no", "INVALID"),
    ("Look: is it proven to be better?", "yes", "IMPROVED"),
    ("Is it proven to be within the tolerance?", "yes", "PASS"),
    ("Is it proven to be worse\nthan a quarter of the tolerance?", "yes", "REGRESSED"),
    ("Are all looks taken, or the budget spent?", "yes", "INCONCLUSIVE"),
)
"""Questions of a comparison, in this order: the answer that ends it, and its verdict."""

AGAIN: Final = 3
"""The question to which the last one leads back."""


def draw_verdict(axes: Axes) -> None:
    """The questions below one another, each with the answer that leads to a verdict on its right."""
    box = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": "#808a94"}
    last = len(QUESTIONS) - 1
    for place, (question, answer, verdict) in enumerate(QUESTIONS):
        colour = COLOURS.get(verdict, COLOURS["passes" if verdict in {"PASS", "IMPROVED"} else "INCONCLUSIVE"])
        axes.text(2.5, -place, question, ha="center", va="center", bbox=box, zorder=2)
        axes.text(7.2, -place, verdict, ha="center", va="center", color=colour, fontweight="bold")
        axes.annotate("", (5.9, -place), (4.75, -place), arrowprops={"arrowstyle": "->"})
        axes.text(5.3, -place + 0.12, answer, ha="center", color="#5a6570")
        if place < last:
            axes.annotate("", (2.5, -place - 0.7), (2.5, -place - 0.3), arrowprops={"arrowstyle": "->"}, zorder=1)
            axes.text(2.6, -place - 0.5, "yes" if answer == "no" else "no", va="center", color="#5a6570")
    axes.plot([0.5, -0.2, -0.2], [-last, -last, -AGAIN], color="black", linewidth=1)
    axes.annotate("", (0.4, -AGAIN), (-0.23, -AGAIN), arrowprops={"arrowstyle": "->"})
    axes.text(-0.1, -last + 0.12, "no", color="#5a6570")
    axes.set(xlim=(-0.4, 8.8), ylim=(-last - 0.5, 0.5))
    axes.axis("off")


def draw_plots() -> None:
    """Write both plots."""
    # The same data make the same file, and letters stay letters.
    mpl.rcParams.update({"svg.hashsalt": "gpuserve", "svg.fonttype": "none", "font.size": 10})
    for name, draw, height in (("verdict", draw_verdict, 6.4), ("told", draw_told, 3.6)):
        figure, axes = plt.subplots(figsize=(7.5, height), layout="constrained")
        draw(axes)
        figure.savefig(PICTURES / f"{name}.svg", metadata={"Date": None}, facecolor="white")


# -- the red run of the first tutorial

TUTORIAL: Final = next(page for page in TUTORIALS if page.stem == "first_gate")

COMMANDS: Final = """
git init -q
python -m pytest_gpuserve.new app.py --body='{"text": "fox"}'
git add -A
git commit -q -m "An app and its gate"
sed -i 's/0.010/0.015/' app.py
pytest suites/app --color=yes --gpu=cpu --against=HEAD --gpuserve-report=report.html --gpuserve-markdown=comment.md
"""

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")

FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-device-scale-factor=1.25",
)

GITHUB: Final = """<!DOCTYPE html><meta charset="utf-8"><style>
body { width: 860px; margin: 12px; padding: 4px 16px 16px; border: 1px solid #d1d9e0; border-radius: 6px;
  font: 14px/1.5 "Noto Sans", Helvetica, Arial, sans-serif; color: #1f2328; }
h3 { margin: 16px 0; font-size: 1.25em; }
p, table, details { margin: 0 0 12px; }
code, pre { background: #818b981f; border-radius: 6px; font: 12px/1.45 ui-monospace, monospace; }
code { padding: .2em .4em; }
pre { padding: 12px; white-space: pre-wrap; }
table { border-collapse: collapse; }
th, td { padding: 6px 13px; border: 1px solid #d1d9e0; }
</style>"""
"""A comment's frame and the styles of its elements, as GitHub has them."""

COLUMNS: Final = 120
LEFT_OUT: Final = re.compile(
    r"(platform|benchmark:|rootdir:|plugins:|server logs:|report:|--gpuserve-markdown:|gpuserve: comparisons|FAILED) "
    r"|E +(metrics that|did not|\.\.\.|$)"
)
"""Lines that the picture of the terminal does not need."""


def measure(folder: Path) -> tuple[str, str, str]:
    """Run the tutorial up to its red run; returns the terminal's text and the pages to show.

    The pages are without what names this machine.
    """
    app = next(each.content for each in MarkdownIt().parse(TUTORIAL.read_text("utf-8")) if each.info == "python")
    (folder / "app.py").write_text(app, encoding="utf-8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    status, said = run(COMMANDS, folder, {**os.environ, **GIT, "PATH": path, "COLUMNS": str(COLUMNS)})
    if status != 1 or "REGRESSED" not in said:
        sys.exit(f"the run did not find the slowdown: exit status {status}\n{said}")
    report = (folder / "report.html").read_text("utf-8").partition("<h2>Where it ran")[0]
    # The first fold has why the test failed.
    comment = (folder / "comment.md").read_text("utf-8").replace("<details>", "<details open>", 1)
    shown = GITHUB + re.sub(r"<details><summary>Notes.*?</details>", "", comment, flags=re.DOTALL)
    lines = said.splitlines()
    begin = next(number for number, line in enumerate(lines) if "test session starts" in line)
    return "\n".join(lines[begin:]), report, shown


def terminal(output: str) -> str:
    """Return an SVG that needs no network; lines of the failing test's own source are left out."""
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


def take(browser: str, folder: Path, picture: Path) -> None:
    """Let the browser draw a page, and cut off the empty space below it."""
    drawn = folder / "page.png"
    argv = [browser, *FLAGS, f"--user-data-dir={folder / 'browser'}", "--window-size=920,2000", f"--screenshot={drawn}"]
    subprocess.run([*argv, (folder / "page.html").as_uri()], check=True, capture_output=True, timeout=60)
    image = Image.open(drawn).convert("RGB")
    empty = Image.new("RGB", image.size, image.getpixel((0, image.height - 1)))
    used = ImageChops.difference(image, empty).getbbox()
    bottom = image.height if used is None else min(used[3] + 16, image.height)
    image.crop((0, 0, image.width, bottom)).quantize(256).save(picture, optimize=True)


def main() -> None:
    """Write the plots, measure, and write the other pictures."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("no chromium along the PATH takes the screenshots: apt-get install chromium fonts-noto-color-emoji")
    draw_plots()
    with tempfile.TemporaryDirectory(prefix="gpuserve-pictures-") as name:
        folder = Path(name)
        said, report, comment = measure(folder)
        (PICTURES / "red.svg").write_text(terminal(said), encoding="utf-8")
        for picture, page in (("report", report), ("comment", comment)):
            (folder / "page.html").write_text(page, encoding="utf-8")
            take(browser, folder, PICTURES / f"{picture}.png")


if __name__ == "__main__":
    main()
