"""The HTML report as its page shows it: ``python -m tests.docs.screenshots``, of made-up results."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from PIL import Image

from pytest_gpuserve.report.html import document
from tests.docs.plots import PICTURES
from tests.report.html_results import session_result

DARK: Final = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")
LOOKS: Final = {"report_light": (1000, 1250, ()), "report_dark": (1000, 1250, DARK), "report_phone": (500, 1250, ())}
"""CSS pixels and flags; a narrower window than 500 a headless Chromium does not have."""


def main() -> None:
    """Write the pictures."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("there is no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        page.write_text(document(session_result(3, stored=False)), encoding="utf-8")
        for name, (width, height, flags) in LOOKS.items():
            file = PICTURES / f"{name}.png"
            base = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *flags]
            size = f"--window-size={width},{height}"
            subprocess.run([*base, size, f"--screenshot={file}", page.as_uri()], check=True, capture_output=True)
            Image.open(file).convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(file, optimize=True)


if __name__ == "__main__":
    main()
