"""Screenshots of the HTML report and of the pull-request comment: ``python -m tests.docs.screenshots``.

Both come from one real run: the red one of the first tutorial, on this machine's CPU, which takes a minute. The script
needs chromium and a font of emoji: ``apt-get install chromium fonts-noto-color-emoji``.
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

from markdown_it import MarkdownIt
from PIL import Image, ImageChops

from tests.docs.plots import PICTURES
from tests.docs.test_tutorials import GIT, TUTORIALS, run

TUTORIAL: Final = next(page for page in TUTORIALS if page.stem == "first_gate")

COMMANDS: Final = """
git init -q
python -m pytest_gpuserve.new app.py --body='{"text": "fox"}'
git add -A
git commit -q -m "An app and its gate"
sed -i 's/0.010/0.015/' app.py
pytest suites/app --gpu=cpu --against=HEAD --gpuserve-report=report.html --gpuserve-markdown=comment.md
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


def main() -> None:
    """Measure, and write both pictures."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("no chromium along the PATH takes the screenshots: apt-get install chromium fonts-noto-color-emoji")
    with tempfile.TemporaryDirectory(prefix="gpuserve-screenshots-") as name:
        folder = Path(name)
        report, comment = measure(folder)
        for picture, page in (("report", report), ("comment", comment)):
            (folder / "page.html").write_text(page, encoding="utf-8")
            take(browser, folder, PICTURES / f"{picture}.png")


def measure(folder: Path) -> tuple[str, str]:
    """Run the tutorial up to its red run; returns the pages to show, without what names this machine."""
    app = next(each.content for each in MarkdownIt().parse(TUTORIAL.read_text("utf-8")) if each.info == "python")
    (folder / "app.py").write_text(app, encoding="utf-8")
    python = Path(sys.executable).parent
    status, said = run(COMMANDS, folder, {**os.environ, **GIT, "PATH": f"{python}:{os.environ['PATH']}"})
    if status != 1 or "REGRESSED" not in said:
        sys.exit(f"the run did not find the slowdown: exit status {status}\n{said}")
    report = (folder / "report.html").read_text("utf-8").partition("<h2>Where it ran")[0]
    # The first fold has why the test failed.
    comment = (folder / "comment.md").read_text("utf-8").replace("<details>", "<details open>", 1)
    return report, GITHUB + re.sub(r"<details><summary>Notes.*?</details>", "", comment, flags=re.DOTALL)


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


if __name__ == "__main__":
    main()
