"""The extras of the package are what pip reads in the built wheel."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_reference_to_an_own_extra_has_no_marker() -> None:
    """The build backend drops such a marker: pip then compiled numpy 1 on Python 3.13."""
    references = re.findall(r'"(pytest-gpuserve\[[^"]*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert references
    assert [each for each in references if ";" in each] == []
