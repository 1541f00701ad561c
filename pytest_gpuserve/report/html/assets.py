"""What a page is made with: the template, and the library that draws, packed for being unpacked by the browser."""

from __future__ import annotations

import base64
import hashlib
import importlib
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.report.html.plots import packed

if TYPE_CHECKING:
    import jinja2

EXTRA: Final = "pip install 'pytest-gpuserve[report]'"

_LIBRARY: Final = Path("package_data", "plotly.min.js")
_HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Library:
    """The library that draws.

    Args:
        packed: As it stands in the page.
        digest: Of what is run, as a content security policy names it.
    """

    packed: str
    digest: str


@cache
def library() -> Library:
    """The plotting library, packed: nearly 5 MB of it would be too much for each report.

    Raises:
        UsageProblem: It is not installed, or has another form.
    """
    spec = importlib.util.find_spec("plotly")
    # Found, but never imported: of the package only the script is wanted.
    files = [Path(folder) / _LIBRARY for folder in (spec and spec.submodule_search_locations) or ()]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise UsageProblem(
            "an HTML report is drawn with plotly, which is not installed",
            looked=[str(file) for file in files] or ["the packages of this interpreter"],
            remedies=[EXTRA],
        )
    script = found.read_bytes()
    return Library(packed(script), digest(script))


def own(name: str) -> str:
    """A script or style sheet of this folder."""
    return (_HERE / name).read_text(encoding="utf-8")


def digest(content: bytes) -> str:
    """Name a content as a content security policy does (Content Security Policy Level 3, 2.3.1)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode('ascii')}"


def template(name: str) -> jinja2.Template:
    """A template of this folder, which escapes all that is put into it.

    Raises:
        UsageProblem: The library for templates is not installed.
    """
    try:
        jinja = importlib.import_module("jinja2")
    except ImportError:
        raise UsageProblem(
            "an HTML report is made with jinja2, which is not installed",
            looked=["the packages of this interpreter"],
            remedies=[EXTRA],
        ) from None
    environment: jinja2.Environment = jinja.Environment(
        loader=jinja.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)
