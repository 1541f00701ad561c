"""What a page is made with: the templates and the style sheet of this folder."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.report.html.svg import draw

if TYPE_CHECKING:
    import jinja2

EXTRA: Final = "pip install 'pytest-gpuserve[report]'"

_HERE: Final = Path(__file__).parent


def own(name: str) -> str:
    """A style sheet of this folder."""
    return (_HERE / name).read_text(encoding="utf-8")


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
    environment.globals["draw"] = draw
    return environment.get_template(name)
