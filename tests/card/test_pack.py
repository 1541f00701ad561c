"""The pack: what is in it, and which is refused."""

from __future__ import annotations

import json
import os
import zipfile
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import UsageProblem
from tests.card import pack
from tests.card.steps import MANIFEST, REPOSITORY, ROOT

if TYPE_CHECKING:
    from pathlib import Path

VERSION = metadata.version("hpack")


def wheel(path: Path, **files: str) -> Path:
    """A wheel with these files."""
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


def test_a_pack_has_the_last_commit_and_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has this checkout's commit, and what is not there; too much is refused, and so is another folder."""
    name, information = f"hpack-{VERSION}-py3-none-any.whl", f"hpack-{VERSION}.dist-info"
    told = {"METADATA": f"Name: hpack\nVersion: {VERSION}", "WHEEL": "Wheel-Version: 1.0", "RECORD": ""}
    wheel(tmp_path / name, **{f"{information}/{file}": text for file, text in told.items()})
    for variable in [variable for variable in os.environ if variable.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    for variable, value in {"CONFIG_FILE": os.devnull, "NO_INDEX": "1", "FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(f"PIP_{variable}", value)
    monkeypatch.setattr(pack, "requirements", lambda: {"main": ["hpack", "iniconfig"], "triton": ["pytest"]})
    into, there = tmp_path / "pack", {"iniconfig": None, "pytest": "99"}
    pack.make_pack(into, "3.12", there, most_mib=1000)
    manifest = json.loads((into / MANIFEST).read_text())
    assert manifest == {"python": "3.12", "pins": {"main": [f"hpack=={VERSION}"], "triton": []}}
    assert sorted(path.name for path in into.iterdir()) == sorted([name, MANIFEST, REPOSITORY])
    assert pack.git(into / REPOSITORY, "log", "--format=%H", "-1") == pack.git(ROOT, "log", "--format=%H", "-1")
    with pytest.raises(UsageProblem, match="too large"):
        pack.make_pack(into, "3.12", there, most_mib=2)
    with pytest.raises(UsageProblem, match="cannot be had"):
        pack.make_pack(into, "3.12", {"pytest": "99"}, most_mib=1000)
    with pytest.raises(UsageProblem, match="is not a pack"):
        pack.make_pack(tmp_path, "3.12", there, most_mib=1000)
