"""Shared memory is laid out without overlap, told to the server, and gone afterwards, however its owner ended."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.errors import LoadFailed, UsageProblem
from pytest_gpuserve.load import shared_memory
from pytest_gpuserve.load.kserve import Inference, OutputRequest, inputs_of
from pytest_gpuserve.load.shared_memory import ALIGNMENT, FOLDER, PREFIX, SharedTensors, share, sweep
from pytest_gpuserve.load.wire import unwritten
from tests.fakes.children.toolkit import ROOT
from tests.fakes.threads import in_a_thread

np = pytest.importorskip("numpy")

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

X = np.arange(5, dtype=np.float32)
INFERENCES = (
    Inference("m", inputs_of({"A": X, "B": ["text", ""]})),
    Inference("m", inputs_of({"A": X + 10, "B": ["", "x" * 100]}), request_id="second"),
)
OUTPUTS = {"Y": 20, "Z": 65}

END_SECONDS = 20.0
"""Of a supervisor; only one that hangs takes so long."""

OWNER = """
import sys
from pytest_gpuserve.load.kserve import Inference, InputTensor
from pytest_gpuserve.load.shared_memory import share
from tests.fakes.children.toolkit import stay
inference = Inference("m", (InputTensor("A", "INT8", (1,), b"x"),))
with share([inference], {"Y": 8}, slots=1, host="127.0.0.1", port=int(sys.argv[1])):
    print("up", flush=True)
    stay()
"""


class Registry(ThreadingHTTPServer):
    """Keeps what is registered with it; refuses the regions whose turn is in ``refused``.

    Requests to forget a region are without effect while there are ``reluctant`` ones left.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.regions: dict[str, dict[str, Any]] = {}
        self.seen = 0
        self.refused: set[int] = set()
        self.refusal = b'{"error":\n"no room for it"}'
        self.reluctant = 0


class Handler(BaseHTTPRequestHandler):
    """Triton's answers to registrations."""

    server: Registry

    def do_POST(self) -> None:
        """Register or unregister."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        *_, name, action = self.path.split("/")
        answer, status = b"", 200
        if action == "unregister":
            if self.server.reluctant:
                self.server.reluctant -= 1
            else:
                self.server.regions.pop(name, None)
        elif self.server.seen in self.server.refused:
            answer, status = self.server.refusal, 500
        else:
            self.server.regions[name] = json.loads(body)
        self.server.seen += action == "register"
        self._answer(status, answer)

    def do_GET(self) -> None:
        """Tell whether a region is known."""
        *_, name, _ = self.path.split("/")
        self._answer(200 if name in self.server.regions else 400, b"")

    def _answer(self, status: int, answer: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[Registry]:
    """A server that takes registrations."""
    with in_a_thread(Registry()) as server:
        yield server


@contextmanager
def shared(
    registry: Registry, *, headers: Mapping[str, str] | None = None, inferences: Sequence[Inference] = INFERENCES
) -> Iterator[SharedTensors]:
    """Both payloads on three slots."""
    port = registry.server_address[1]
    with share(inferences, OUTPUTS, slots=3, host="127.0.0.1", port=port, headers=headers) as memory:
        yield memory


def ours(pid: int | None = None) -> list[Path]:
    """Files of this process, or of another."""
    return list(FOLDER.glob(f"{PREFIX}{pid or os.getpid()}-*"))


def test_inputs_lie_where_the_requests_say(registry: Registry) -> None:
    """Every place holds its tensor's bytes, begins on a cache line, is within its region, and is not shared again."""
    with shared(registry) as memory:
        for inference, slots in zip(INFERENCES, memory.payloads, strict=True):
            assert len(slots) == 3
            for slot in slots:
                assert (slot.model, slot.request_id) == (inference.model, inference.request_id)
                for tensor, placed in zip(inference.inputs, slot.inputs, strict=True):
                    place = placed.data
                    assert not isinstance(place, bytes)
                    content = (FOLDER / place.region).read_bytes()
                    assert content[place.offset :][: place.byte_size] == tensor.data
                    assert place.offset % ALIGNMENT == 0
                    assert place.offset + place.byte_size <= registry.regions[place.region]["byte_size"]
        again = [Inference("m", memory.payloads[0][0].inputs)]
        with pytest.raises(UsageProblem, match="'A' lies in shared memory already"), shared(registry, inferences=again):
            pytest.fail("it was accepted")


def test_each_slot_has_a_place_of_its_own(registry: Registry) -> None:
    """No two outputs of any slots overlap, all payloads of a slot share its place, and the engine is told where."""
    with shared(registry) as memory:
        taken: dict[int, tuple[int, str]] = {}
        for slot in range(3):
            forms = [slots[slot].outputs for slots in memory.payloads]
            assert forms[0] == forms[1]
            for output in forms[0]:
                place = output.place
                assert place is not None
                assert str(FOLDER / place.region) == memory.outputs.file
                assert slot * memory.outputs.slot_bytes <= place.offset
                assert place.offset + place.byte_size <= (slot + 1) * memory.outputs.slot_bytes
                for byte in range(place.offset, place.offset + place.byte_size):
                    assert taken.setdefault(byte, (slot, output.name)) == (slot, output.name)
        assert len(taken) == 3 * sum(OUTPUTS.values())
        content = Path(memory.outputs.file).read_bytes()
        assert content == unwritten(3 * memory.outputs.slot_bytes)
        assert registry.regions[Path(memory.outputs.file).name] == {
            "key": f"/{Path(memory.outputs.file).name}",
            "offset": 0,
            "byte_size": len(content),
        }


def test_an_answer_is_read_from_its_place(registry: Registry) -> None:
    """The place's bytes, then what the server sent: numbers, and strings that end before their place does."""
    with shared(registry) as memory:
        strings = b"\x02\0\0\0hi" + b"\0\0\0\0"
        place = X.tobytes() + unwritten(ALIGNMENT)[20:] + strings + unwritten(2 * ALIGNMENT)[len(strings) :]
        assert len(place) == memory.outputs.slot_bytes
        outputs = [{"name": "Y", "datatype": "FP32", "shape": [5]}, {"name": "Z", "datatype": "BYTES", "shape": [2]}]
        got = memory.decode(place + json.dumps({"outputs": outputs}).encode())
        assert got["Y"].tolist() == X.tolist()
        assert got["Z"].tolist() == [b"hi", b""]
        outputs[0]["shape"] = [6]
        with pytest.raises(ValueError, match="takes 24 bytes; it has 20"):
            memory.decode(place + json.dumps({"outputs": outputs}).encode())
        with pytest.raises(ValueError, match="the server's error: gone"):
            memory.decode(place + b'{"error": "gone"}')
        # Requests of a payload differ between slots, and carry the check of their payload.
        requests = memory.http_requests((b"one", b"two"))
        assert [len({request.body for request in slots}) for slots in requests] == [3, 3]
        assert [{request.expect for request in slots} for slots in requests] == [{b"one"}, {b"two"}]
        with pytest.raises(ValueError, match="argument"):
            memory.http_requests((b"one",))


def test_files_are_private_and_gone_afterwards(registry: Registry) -> None:
    """Only their user can open them; after a failure a region that is still used is asked for until it is forgotten."""

    def load() -> None:
        with shared(registry):
            assert [stat.S_IMODE(path.stat().st_mode) for path in ours()] == [0o600, 0o600]
            assert len(registry.regions) == 2
            registry.reluctant = 5
            raise RuntimeError("in the load")

    with pytest.raises(RuntimeError, match="in the load"):
        load()
    assert not ours()
    assert not registry.regions


@pytest.mark.parametrize("turn", [0, 1])
def test_a_server_that_refuses_is_told(registry: Registry, turn: int) -> None:
    """The server's words are shown in one line, and what was registered before is not left."""
    registry.refused = {turn}
    with pytest.raises(LoadFailed, match=r'status 500: \{"error": "no room for it"\}'), shared(registry):
        pytest.fail("it was refused")
    assert not ours()
    assert not registry.regions


@pytest.mark.parametrize("before", range(272, 304, 6))
def test_a_refusal_shows_no_secret_of_the_request(registry: Registry, before: int) -> None:
    """Wherever the end of what is shown falls, nor the half of one."""
    registry.refused = {0}
    registry.refusal = b"x" * (before % 2) + b" x" * (before // 2) + b" hf_abcdefghijkl" + b" x" * 100
    headers = {"Authorization": "Bearer hf_abcdefghijkl"}
    with pytest.raises(LoadFailed, match="status 500: ") as caught, shared(registry, headers=headers):
        pytest.fail("it was refused")
    assert "hf_" not in str(caught.value)


def test_a_server_that_is_not_there_is_told() -> None:
    """With its address, and what to look at; one that dies later has nothing registered, and is no trouble."""
    with in_a_thread(Registry()) as server:
        sharing = shared(server)
        sharing.__enter__()
    told = rf"127.0.0.1:{server.server_address[1]} could not be asked(.*\n)*.*HTTP API"
    with pytest.raises(LoadFailed, match=told), shared(server):
        pytest.fail("there is no server")
    assert len(ours()) == 2
    sharing.__exit__(None, None, None)
    assert not ours()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_killed_owner(registry: Registry, how: signal.Signals) -> None:
    """Its supervisor removes the files at once, however it ended; another owner leaves those of a living one alone."""
    port = str(registry.server_address[1])
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, port], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "up\n"
            assert not {path.name for path in ours(owner.pid)} & set(sweep())
            with shared(registry):
                assert len(ours(owner.pid)) == 2
            owner.send_signal(how)
            owner.wait(20)
            deadline = time.monotonic() + END_SECONDS
            while ours(owner.pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not ours(owner.pid)
        finally:
            owner.kill()


def test_a_sweep_never_takes_a_file_in_use() -> None:
    """However sweep and creation interleave, the file that an owner got is there and is locked."""
    stop = threading.Event()

    def sweeping() -> None:
        while not stop.is_set():
            sweep()

    thread = threading.Thread(target=sweeping)
    thread.start()
    try:
        for _ in range(300):
            path = FOLDER / f"{PREFIX}{os.getpid()}-swept"
            with shared_memory._file(path, [b"content"], 7):
                assert path.read_bytes() == b"content"
    finally:
        stop.set()
        thread.join()
    assert not ours()


def test_no_room_is_told(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full /dev/shm, as small as containers get it, is the user's problem with its remedy, and no SIGBUS later."""

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UsageProblem, match=r"has no room for \d+ bytes(.*\n)*.*--shm-size"), shared(registry):
        pytest.fail("there was no room")
    assert not ours()


@pytest.mark.parametrize(
    "arguments",
    [
        {"slots": 0},
        {"slots": 1.0},
        {"outputs": {}},
        {"outputs": {"Y": 0}},
        {"outputs": {"Y": "20"}},
        {"inferences": []},
        {"inferences": [Inference("m", inputs_of({"A": X}), (OutputRequest("Y"),))]},
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    """Before any file is made."""
    given: dict[str, Any] = {"inferences": INFERENCES, "outputs": OUTPUTS, "slots": 1, **arguments}
    with pytest.raises(UsageProblem), share(**given, host="127.0.0.1", port=1):
        pytest.fail("it was accepted")
