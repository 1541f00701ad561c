"""The READMEs of the package's rooms, and the page of reasons: what they name is there, and nothing is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pytest_gpuserve
from pytest_gpuserve.verdict.reason import ReasonKind

PACKAGE = Path(pytest_gpuserve.__file__).parent
ROOMS = sorted(path.parent for path in PACKAGE.glob("*/__init__.py") if path.parent.name != "trial")
MOST_LINES = 30


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_has_a_readme_of_one_screen_that_names_what_is_there(room: Path) -> None:
    """Modules, links and tests that a room's README names are files; it has at most 30 lines."""
    text = (room / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    modules = re.findall(r"`([\w/]+\.py)`", text)
    missing = [
        name
        for name in modules
        if not ((room / name).is_file() or [*room.rglob(name)] or (PACKAGE.parent / name).is_file())
    ]
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not (room / link).exists()]
    assert (missing, links) == ([], [])


def test_each_kind_of_reason_has_its_anchor() -> None:
    """The page of reasons has a heading for each kind, in the order of the code, and for nothing else."""
    page = (PACKAGE / "docs" / "reference" / "reasons.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (.+)$", page, re.MULTILINE) == [str(kind) for kind in ReasonKind]
