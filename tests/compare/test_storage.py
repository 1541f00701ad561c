"""A side of a comparison that lies in shared storage: read from there, and every trouble of the storage is told."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from pytest_gpuserve.store.elsewhere.filesystem import ReadFolder
from tests.compare.conftest import SAME
from tests.support.baseline_repository import FILE, TEST, BaselineRepository, entry_of, result_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.compare.conftest import Said

pytestmark = pytest.mark.usefixtures("repository")
fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[str]:
    """The address of a folder, in memory, with the baseline as it was before, and with published numbers."""
    before = BaselineRepository(tmp_path / "before")
    place = uuid4().hex
    put(f"{place}/baselines/cpu/{FILE}", before.write({TEST: entry_of()}).read_bytes())
    put(f"{place}/baselines/T4/published/x.json", b"{}")
    yield f"memory://{place}/baselines"
    fsspec.filesystem("memory").rm(f"/{place}", recursive=True)


def put(path: str, data: bytes) -> None:
    """Let the storage hold a file."""
    fsspec.filesystem("memory").pipe_file(f"/{path}", data)


def test_an_address_is_a_side(repository: BaselineRepository, bucket: str, said: Said) -> None:
    """A folder, a baseline or a result, in either place, against local ones and itself; published numbers are none."""
    for other in ("baselines", "HEAD:"):
        status, text = said(bucket, other)
        assert status == 1
        assert "REGRESSED" in text
        assert f"A, the reference: {bucket}" in text
        assert said(other, bucket)[0] == 0
    one, result = f"{bucket}/cpu/{FILE}", f"{bucket}/out.json"
    put(result.removeprefix("memory://"), result_text(day=1).encode())
    for a, b in ((f"{bucket}/", bucket), (one, one), (one, bucket), (result, result)):
        status, text = said(a, b)
        assert (status, SAME in text) == (0, True)
    assert said(one, f"baselines/cpu/{FILE}")[0] == 1
    assert said(f"file://{repository.root / 'baselines'}", "baselines")[0] == 0


@pytest.mark.parametrize(
    ("below", "problem"),
    [
        ("/none", "there is no baseline in memory://"),
        ("/none.json", "there is no file memory://"),
        ("/cpu", "is a folder of one device's baselines"),
    ],
)
def test_what_a_storage_has_not_is_a_wrong_argument(bucket: str, said: Said, below: str, problem: str) -> None:
    """Exit status 2: there is nothing that could have been compared."""
    status, text = said(bucket + below, "baselines")
    assert (status, problem in text) == (2, True)


def test_a_storage_that_fails_is_told(bucket: str, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer, or a file that vanishes meanwhile, is exit status 2: what is left is not all there was."""

    def fails(*_: object, **__: object) -> None:
        raise ConnectionResetError("by peer")

    with monkeypatch.context() as patch:
        patch.setattr(type(fsspec.filesystem("memory")), "ls", fails)
        status, text = said("baselines", bucket)
    assert status == 2
    assert f"{bucket} cannot be listed\n  found: ConnectionResetError: by peer" in text
    monkeypatch.setattr(ReadFolder, "fetch", lambda *_: None)
    status, text = said(bucket, "baselines")
    assert status == 2
    assert f"{bucket}/cpu/{FILE} was removed while {bucket} was read" in text


@pytest.mark.parametrize("address", ["https://to/ken77@host/x", "nosuchthing://x/y", "s3://bucket/../x", "file:///no"])
def test_an_address_that_cannot_be_used_is_a_wrong_argument(said: Said, address: str) -> None:
    """Said of the argument, not of an option of pytest; and a token in it is not told."""
    status, text = said(address, "baselines")
    assert status == 2
    assert "--baseline-dir" not in text
    assert "ken77" not in text
