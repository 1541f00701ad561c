"""The pack: what is needed, what fits, and what becomes of a wheel."""

from __future__ import annotations

import json
import os
import zipfile
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import UsageProblem
from tests.card import pack as pack_module
from tests.card.groups import MANIFEST, ROOT
from tests.card.pack import MIB, SPARE_MIB, checkout_bytes, make_pack, needed, shrink
from tests.card.wheel_files import wheel

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = {name: metadata.version(name) for name in ("hpack", "execnet", "iniconfig")}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with wheels of half a MiB, in the place of an index; one distribution has none."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("hpack", "execnet"):
        wheel(folder, name, VERSIONS[name], files={"data": os.urandom(MIB // 2)})
    for name in os.environ:
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


@pytest.mark.usefixtures("index")
def test_what_does_not_fit_is_left_out_from_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first group is packed, the second does not fit, and of another there is no wheel; the manifest says so."""
    wanted = {"core": ["hpack"], "mosec": ["execnet"], "triton": ["iniconfig"]}
    monkeypatch.setattr(pack_module, "groups", lambda: wanted)
    room = checkout_bytes(ROOT) / MIB + SPARE_MIB + 0.75
    made = make_pack(tmp_path / "pack", ["3.11"], {}, room)
    execnet = f"execnet-{VERSIONS['execnet']}-py3-none-any.whl"
    assert list(made.sizes) == [f"hpack-{VERSIONS['hpack']}-py3-none-any.whl"]
    assert made.left_out == {
        execnet: "its 0.5 MiB do not fit",
        f"iniconfig=={VERSIONS['iniconfig']}": "no wheel for Python 3.11",
    }
    told = json.loads((tmp_path / "pack" / MANIFEST).read_text())
    assert told["pythons"] == {"3.11": {"core": [f"hpack=={VERSIONS['hpack']}"]}}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(UsageProblem, match="no pack and not empty"):
        make_pack(tmp_path / "mine", ["3.11"], there={}, most_mib=1000)
    with pytest.raises(UsageProblem, match="nothing fits"):
        make_pack(tmp_path / "pack", ["3.11"], {}, 1)


def test_what_the_machine_has_is_not_needed() -> None:
    """Neither what torch requires, nor what is there in a version that will do; another version is."""
    assert "filelock" not in needed(["filelock"], "3.12", {})
    assert needed(["iniconfig>=1"], "3.12", {"iniconfig": "2.0"}) == []
    assert needed(["iniconfig>=2"], "3.12", {"iniconfig": "1.0"}) == ["iniconfig"]
    assert needed(["iniconfig; python_version < '3.12'"], "3.12", {}) == []


def test_a_wheel_is_packed_anew(tmp_path: Path) -> None:
    """It keeps who may execute what, lists what it holds, and loses what is for another Python."""
    stubs = {f"python_backend_stubs/{version}/stub": version.encode() for version in ("3.8", "3.12")}
    made = wheel(tmp_path, "probe", files={"program": b"#!/bin/sh", **stubs})
    into = tmp_path / "packed.whl"
    shrink(made, into, ["3.12"])
    with zipfile.ZipFile(into) as archive:
        names = archive.namelist()
        listed = archive.read("probe-1.0.dist-info/RECORD").decode().splitlines()
        assert archive.getinfo("probe/program").external_attr >> 16 == 0o755
    assert [line.partition(",")[0] for line in listed] == names
    assert "probe/python_backend_stubs/3.12/stub" in names
    assert "probe/python_backend_stubs/3.8/stub" not in names
