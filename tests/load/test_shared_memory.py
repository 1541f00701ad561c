"""Shared memory is laid out without overlap, registered with the server, and removed after any end of its owner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.load.kserve import Inference, tensors_of
from pytest_gpuserve.load.shared_memory import FOLDER, PREFIX, Layout, share
from pytest_gpuserve.load.wire import unwritten
from tests.fakes.children.toolkit import ROOT, eventually

np = pytest.importorskip("numpy")
pytest.importorskip("tritonclient.utils.shared_memory")

if TYPE_CHECKING:
    from pathlib import Path

LAYOUT = Layout((("Y", 20), ("Z", 65)))
PAYLOADS = [Inference("m", tensors_of("input", {"A": x}), ("Y", "Z")) for x in ([1.0], [2.0, 3.0])]
OWNER = """
from tests.load.test_shared_memory import LAYOUT, PAYLOADS, share
with share(PAYLOADS, LAYOUT, 2, lambda *_: (200, "")):
    print("up", flush=True)
    input()
"""


def ours(pid: int) -> dict[str, Path]:
    """Regions of a process."""
    return {path.name: path for path in FOLDER.glob(f"{PREFIX}{pid}-*")}


def test_every_tensor_has_a_place_of_its_own() -> None:
    """Inputs lie where the requests say, no two outputs overlap, and the server knows both regions meanwhile."""
    told: dict[str, Any] = {}

    def ask(method: str, path: str, body: bytes) -> tuple[int, str]:
        region, _, action = path.partition("/")
        if action == "register":
            told[region] = json.loads(body)["byte_size"]
        elif method == "POST":
            del told[region]
        return (200 if region in told else 400), ""

    with share(PAYLOADS, LAYOUT, 3, ask) as shared:
        assert told == {name: path.stat().st_size for name, path in ours(os.getpid()).items()}
        taken = [
            (place.region, byte)
            for number, slots in enumerate(shared.payloads)
            for slot, inference in enumerate(slots)
            for (kind, _), place in inference.places.items()
            for byte in range(place.offset, place.offset + place.byte_size)
            if (kind == "output" and number == 0) or (kind == "input" and slot == 0)
        ]
        assert len(taken) == len({*taken}) == 3 * 85 + 3 * 8
        for inference, *_ in shared.payloads:
            place = inference.places["input", "A"]
            content = (FOLDER / place.region).read_bytes()
            assert content[place.offset :][: place.byte_size] == inference.inputs["A"].tobytes()
    assert not told
    with (
        pytest.raises(ServerFailed, match="status 500: no room"),
        share(PAYLOADS, LAYOUT, 1, lambda *_: (500, "no room")),
    ):
        pytest.fail("it was refused")
    assert not ours(os.getpid())


def test_nothing_is_left_of_a_killed_owner() -> None:
    """Its regions are removed at once."""
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=-3, cwd=ROOT) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        assert len(ours(owner.pid)) == 2
        owner.kill()
    eventually(lambda: not ours(owner.pid), "its regions are gone")


def test_no_room_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full /dev/shm, as small as containers get it, is the user's problem with its remedy, and no SIGBUS later."""
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: (FOLDER / "full").stat())
    with (
        pytest.raises(UsageProblem, match=r"has no room[\s\S]*--shm-size"),
        share(PAYLOADS, LAYOUT, 1, lambda *_: (200, "")),
    ):
        pytest.fail("there was no room")
    assert not ours(os.getpid())


def test_an_answer_is_read_from_its_place() -> None:
    """Numbers, and strings that end before their place does; not what was not written, or came another way."""
    outputs = [{"name": "Y", "datatype": "FP32", "shape": [5]}, {"name": "Z", "datatype": "BYTES", "shape": [2]}]
    answer = json.dumps({"outputs": outputs}).encode()
    place = np.arange(5, dtype="f4").tobytes().ljust(64, b"\0") + b"\2\0\0\0hi\0\0\0\0".ljust(128, b"\0")
    got = LAYOUT.decode(place + answer)
    assert (got["Y"].tolist(), got["Z"].tolist()) == ([0, 1, 2, 3, 4], [b"hi", b""])
    with pytest.raises(ValueError, match="'Y' was not written"):
        LAYOUT.decode(unwritten(192) + answer)
    with pytest.raises(ValueError, match="came in the answer"):
        LAYOUT.decode(place + answer.replace(b"[5]", b'[5], "data": [0, 1, 2, 3, 4]'))
    with pytest.raises(ValueError, match="buffer is smaller"):
        LAYOUT.decode(place + answer.replace(b"[5]", b"[6]"))
