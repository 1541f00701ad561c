"""The pytest side of the engines: merged ticks, an end without remains, and errors that say what happened."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from pytest_gpuserve.errors import LoadFailed, UsageProblem
from pytest_gpuserve.load import engine_process
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.engine.loop import OWN_FILES
from pytest_gpuserve.load.engine_process import EngineProcess
from pytest_gpuserve.load.schedule import Burst, Closed, Poisson, Steps
from pytest_gpuserve.load.source import LocalEngines
from pytest_gpuserve.load.wire import Endpoint, Outputs, Ready, Tick, frame
from pytest_gpuserve.process.module import module_command
from tests.fakes.children.toolkit import ROOT, alive
from tests.fakes.http_server import Serving, Totals, plan, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.wire import Plan


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    """Give a server."""
    with serving() as running:
        yield running


def remains() -> set[int]:
    """Return our child processes, zombies included, that are engines or have no command any more."""
    return {
        child.pid
        for child in psutil.Process().children()
        if child.status() == psutil.STATUS_ZOMBIE or "pytest_gpuserve.load.engine" in child.cmdline()
    }


@pytest.fixture(autouse=True)
def nothing_remains() -> Iterator[None]:
    """Fail a test that leaves an engine, or a file that it opened, behind."""
    files = psutil.Process().num_fds()
    yield
    assert remains() == set()
    assert psutil.Process().num_fds() <= files


@pytest.fixture
def fake_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Start this script as an engine: it says the files ``says-0``, ``says-1`` ... each when it is told something."""
    script = tmp_path / "engine"
    script.write_text(
        f"""#!{sys.executable}
import pathlib, sys
from pytest_gpuserve.load.wire import LENGTH
sys.stderr.write("why\\n")
sys.stderr.flush()
for part in sorted(pathlib.Path({str(tmp_path)!r}).glob("says-*")):
    (length,) = LENGTH.unpack(sys.stdin.buffer.read(LENGTH.size))
    sys.stdin.buffer.read(length)
    sys.stdout.buffer.write(part.read_bytes())
    sys.stdout.buffer.flush()
sys.stdin.buffer.read()
"""
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return tmp_path


def fail_to_import(folder: Path, *names: str) -> None:
    """Put modules of these names into the folder that nobody can import."""
    for name in names:
        (folder / f"{name}.py").write_text("raise ImportError(f'{__file__} is imported')")


# -- the start


def test_modules_of_the_working_folder_are_not_the_engines(
    server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project may have a file named as a module of the standard library, or as one of the engine's."""
    fail_to_import(tmp_path, "select", "socket", "runpy", "typing", "msgspec", "pytest_gpuserve")
    monkeypatch.chdir(tmp_path)
    with Engines(plan(server.port, requests=3)) as engines:
        assert Totals(engines).take_to_end().requests == 3


def test_a_bare_checkout_runs_its_own_modules(tmp_path: Path) -> None:
    """Found by its owner's sys.path alone, not installed: it is what runs, after the standard library."""
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "pytest_gpuserve", checkout / "pytest_gpuserve", ignore=shutil.ignore_patterns("*.pyc"))
    fail_to_import(checkout, "select", "socket", "runpy")
    module = "import sys, select, pytest_gpuserve.units\nprint(__file__, pytest_gpuserve.units.__file__, *sys.argv)"
    (checkout / "pytest_gpuserve" / "load" / "null_server.py").write_text(module)
    program = f"""
import subprocess, sys
sys.path.append({str(checkout)!r})
sys.modules.pop("pytest_gpuserve", None)
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
sys.path[:] = [entry for entry in sys.path if entry != {str(ROOT)!r}]
from pytest_gpuserve.process.module import module_command
sys.exit(subprocess.run(module_command("pytest_gpuserve.load.null_server", "a", "b")).returncode)
"""
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    path = str(checkout / "pytest_gpuserve" / "load" / "null_server.py")
    assert done.stdout.split() == [path, str(checkout / "pytest_gpuserve" / "units.py"), path, "a", "b"]


def test_the_command_of_a_module_names_it() -> None:
    """So that whoever looks at the processes of a machine sees whose it is."""
    assert "pytest_gpuserve.load.engine" in module_command("pytest_gpuserve.load.engine")


def test_the_pipe_to_an_engine_is_as_large_as_allowed(server: Serving) -> None:
    """A plan may have 64 MB; the usual 64 kB would wake the engine a thousand times."""
    reading, writing = os.pipe()
    try:
        allowed = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, engine_process.PIPE_BYTES)
    except OSError:
        pytest.skip("this user may not enlarge pipes any more")
    finally:
        os.close(reading)
        os.close(writing)
    with Engines(plan(server.port)) as engines:
        stdin = engines._engines[0]._process.stdin
        assert stdin is not None
        assert fcntl.fcntl(stdin, fcntl.F_GETPIPE_SZ) == allowed


def test_an_engine_that_reads_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner does not wait for ever for room in the pipe; it is told what the engine said last, and ends it."""
    script = tmp_path / "engine"
    script.write_text(f"#!{sys.executable}\nimport sys, time\nsys.stderr.write('why')\ntime.sleep(600)\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(engine_process, "SILENCE_SECONDS", 1.0)
    with pytest.raises(LoadFailed, match="read nothing for 1 s") as caught:
        Engines(plan(1, body=bytes(8 << 20)), source=LocalEngines(end_seconds=0.1))
    assert caught.value.log_tail == "why"


@pytest.mark.parametrize("metadata", [(("te", "x"),), (("key", "x" * 100_000),)])
def test_metadata_that_cannot_be_sent_is_refused_before_the_start(
    monkeypatch: pytest.MonkeyPatch, metadata: tuple[tuple[str, str], ...]
) -> None:
    """As the usage problem that it is, and not as an engine that died."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    whole = msgspec.structs.replace(plan(1), endpoint=Endpoint("grpc", "127.0.0.1", 1, rpc="/a/B", metadata=metadata))
    with pytest.raises(UsageProblem, match="metadata"):
        Engines(whole)


# -- ticks


def test_engines_that_end_at_different_ticks_are_one_load(server: Serving) -> None:
    """One of two engines has one request of three: after its end the other goes on alone, up to the one last tick."""
    with Engines(plan(server.port, "/ok?ms=200", connections=2, requests=3), 2) as engines:
        totals = Totals(engines).take_to_end()
    assert (totals.requests, totals.sent, totals.errors) == (3, 3, {})
    assert [tick.number for tick in totals.ticks] == list(range(len(totals.ticks)))
    assert [tick.last for tick in totals.ticks] == [False] * (len(totals.ticks) - 1) + [True]
    assert max(tick.in_flight for tick in totals.ticks) == 2
    # The one alone is under way for as long as both were together: ten ticks, where the machine has time for all.
    assert sum(tick.in_flight == 1 for tick in totals.ticks) >= 3


def test_reports_are_read_whatever_pieces_they_come_in(fake_engine: Path) -> None:
    """Readiness and the first tick in one piece, the second cut in two: each tick arrives once, and in order."""
    ticks = [Tick(number, number, number + 1, requests=7 + number) for number in range(3)]
    sent = b"".join(frame(tick) for tick in ticks)
    (fake_engine / "says-0").write_bytes(frame(Ready()) + sent[:-5])
    (fake_engine / "says-1").write_bytes(sent[-5:])
    with Engines(plan(1)) as engines:
        assert [engines.next_tick() for _ in ticks] == ticks


def test_the_begin_is_the_same_for_all_and_not_over(server: Serving) -> None:
    """Engines begin together: their first tick covers the time from one begin on, and begins before it is read."""
    before = time.perf_counter_ns()
    whole = plan(server.port, "/ok?ms=1")
    with Engines(whole, 2) as engines:
        tick = engines.next_tick()
    assert before < tick.begin_ns < tick.end_ns < time.perf_counter_ns()
    assert tick.number == 0


# -- the end


def test_closed_engines_are_gone_and_may_be_closed_again(server: Serving) -> None:
    """After close the processes have ended by themselves, with status 0, while they were under load."""
    engines = Engines(plan(server.port), 2)
    processes = [engine._process for engine in engines._engines]
    assert engines.pids == tuple(process.pid for process in processes)
    Totals(engines).take_until(lambda totals, _: totals.requests > 0, "load")
    engines.close()
    assert [process.returncode for process in processes] == [0, 0]
    engines.close()


def test_an_engine_that_has_nothing_to_report_for_long_ends_at_once(server: Serving) -> None:
    """The end of its input is enough: it does not find out at its next report that nobody reads it."""
    with Engines(msgspec.structs.replace(plan(server.port), tick_ns=600_000_000_000)) as engines:
        process = engines._engines[0]._process
    assert process.returncode == 0


def test_engines_are_closed_when_the_block_raises(server: Serving) -> None:
    """Whatever happens to the test that measures."""
    with pytest.raises(ArithmeticError), Engines(plan(server.port), 2) as engines:
        raise ArithmeticError
    assert not any(map(alive, engines.pids))


def test_engines_that_were_not_told_to_begin_are_ended(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, or any failure, while engines start leaves none of them."""
    started = []

    def interrupted(engine: EngineProcess, _seconds: float) -> None:
        started.append(engine.pid)
        if len(started) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(EngineProcess, "wait_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Engines(plan(server.port, connections=3), 3)
    assert len(started) == 2
    assert remains() == set()


def test_a_plan_that_cannot_be_told_leaves_no_engine(server: Serving) -> None:
    """The process that was to be told is ended, and so are those before it."""
    whole = msgspec.structs.replace(plan(server.port), seed=1 << 70)
    with pytest.raises(OverflowError):
        Engines(whole, 2)
    assert remains() == set()


# -- failures


def test_an_engine_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that is not there is LoadFailed with the system's reason."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(LoadFailed, match="could not be started") as caught:
        Engines(plan(1))
    assert "/nowhere/python" in caught.value.found


def test_an_engine_that_is_killed_is_no_short_measurement(server: Serving) -> None:
    """One of two engines killed under load ends in LoadFailed that names the signal, not in a last tick."""
    with Engines(plan(server.port, "/ok?ms=5"), 2) as engines:
        engines.next_tick()
        os.kill(engines.pids[1], signal.SIGKILL)
        with pytest.raises(LoadFailed, match="died") as caught:
            Totals(engines).take_until(lambda *_: False, "its end")
    assert caught.value.found == "exit status -9"


def test_a_silent_engine_is_given_up(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped engine ends in LoadFailed after the bound on silence, and is killed when closed."""
    with Engines(plan(server.port, "/ok?ms=5")) as engines:
        engines.next_tick()
        monkeypatch.setattr(engine_process, "SILENCE_SECONDS", 1.0)
        engines._engines[0]._end_seconds = 0.2
        os.kill(engines.pids[0], signal.SIGSTOP)
        with pytest.raises(LoadFailed, match="reported nothing for 1 s"):
            Totals(engines).take_until(lambda *_: False, "its silence")
        process = engines._engines[0]._process
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "said",
    [
        b"\xff\xff\xff\xff much",
        b"\x03\x00\x00\x00{}\n",
        b"\x00\x00\x00\x00",
        frame(Tick(0, 0, 1))[:4] + b"\x00" * (len(frame(Tick(0, 0, 1))) - 4),
        frame(Tick(0, 0, 1)),
    ],
    ids=["length", "not msgpack", "empty", "zeros", "tick before ready"],
)
def test_garbage_instead_of_readiness_is_refused(fake_engine: Path, said: bytes) -> None:
    """Neither an absurd length nor a message that is none is waited for or taken for the truth; its log is shown."""
    (fake_engine / "says-0").write_bytes(said)
    begin = time.monotonic()
    with pytest.raises(LoadFailed, match="garbled") as caught:
        Engines(plan(1))
    assert time.monotonic() - begin < engine_process.SILENCE_SECONDS
    assert caught.value.log_tail == "why\n"


@pytest.mark.parametrize("said", [b"\xff\xff\xff\xff much", b"\x01\x00\x00\x00\x90", frame(Ready())])
def test_garbage_instead_of_a_tick_is_refused(fake_engine: Path, said: bytes) -> None:
    """Also from an engine that began well."""
    (fake_engine / "says-0").write_bytes(frame(Ready()))
    (fake_engine / "says-1").write_bytes(frame(Tick(0, 0, 1)) + said)
    with Engines(plan(1)) as engines:
        assert engines.next_tick() == Tick(0, 0, 1)
        with pytest.raises(LoadFailed, match="garbled"):
            engines.next_tick()


@pytest.mark.parametrize("host", ["no such.host", "x" * 64 + ".invalid"])
def test_an_unknown_host_is_one_readable_text(host: str) -> None:
    """It names the host and the system's reason, and shows no traceback."""
    with pytest.raises(LoadFailed) as caught:
        Engines(plan(1, host=host), 2)
    text = str(caught.value)
    assert f"{host}:1: " in text
    assert "Traceback" not in text
    assert len(text.splitlines()) <= 4


# -- limits


@pytest.mark.parametrize(
    ("schedule", "processes"),
    [
        (Closed(101), 1),
        (Steps(((3, 1.0), (101, 1.0), (5, 1.0))), 1),
        (Poisson(1.0, max_in_flight=101), 1),
        (Closed(201), 2),
    ],
)
def test_more_users_than_files_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, schedule: Schedule, processes: int
) -> None:
    """Before anything is started, with the limit, the need and the command that helps; one fewer is no problem."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (50, 100 + OWN_FILES))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(UsageProblem) as caught:
        Engines(plan(1, schedule=schedule), processes)
    assert str(101 + OWN_FILES) in caught.value.summary
    assert str(100 + OWN_FILES) in caught.value.found
    assert any(f"ulimit -Hn {101 + OWN_FILES}" in remedy for remedy in caught.value.remedies)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (50, 101 + OWN_FILES))
    with pytest.raises(LoadFailed, match="could not be started"):
        Engines(plan(1, schedule=schedule), processes)


@pytest.mark.parametrize("schedule", [Closed(2), Steps(((1, 1.0), (2, 1.0))), Burst(50, max_in_flight=2)])
def test_fewer_users_than_processes_are_refused(monkeypatch: pytest.MonkeyPatch, schedule: Schedule) -> None:
    """A process without a user would never send its share of the requests, and the load never end."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(UsageProblem, match="3 processes cannot share 2 connections") as caught:
        Engines(plan(1, schedule=schedule), 3)
    assert caught.value.remedies == ("processes=2 at most",)
    with pytest.raises(LoadFailed, match="could not be started"):
        Engines(plan(1, schedule=schedule), 2)


def test_an_open_loop_without_a_ceiling_is_shared_by_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no users to share out."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(LoadFailed, match="could not be started"):
        Engines(plan(1, schedule=Poisson(1.0)), 7)


def with_lanes(lanes: int, schedule: Schedule, *, outputs: bool) -> Plan:
    """Plan a load with a form of the payload for each lane."""
    memory = Outputs("/dev/shm/x", 64) if outputs else None
    return msgspec.structs.replace(plan(1, schedule=schedule), payloads=((b"x",) * lanes,), outputs=memory)


@pytest.mark.parametrize("schedule", [Closed(4), Steps(((1, 1.0), (4, 1.0))), Burst(50, max_in_flight=4)])
@pytest.mark.parametrize(("lanes", "outputs"), [(3, True), (3, False), (1, True)])
def test_fewer_lanes_than_requests_under_way_are_refused(
    monkeypatch: pytest.MonkeyPatch, schedule: Schedule, lanes: int, *, outputs: bool
) -> None:
    """Two requests with one place in shared memory would overwrite each other's answers; as many lanes are enough."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    for processes in (1, 4):
        with pytest.raises(UsageProblem, match="4 requests under way at the same time need as many lanes") as caught:
            Engines(with_lanes(lanes, schedule, outputs=outputs), processes)
        assert caught.value.found == f"lanes={lanes}"
        assert caught.value.remedies[0] == "share(..., lanes=4)"
    with pytest.raises(LoadFailed, match="could not be started"):
        Engines(with_lanes(4, schedule, outputs=outputs), 4)


def test_the_payload_with_the_fewest_lanes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several payloads; one without lanes needs none, unless answers lie in shared memory."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    whole = msgspec.structs.replace(plan(1, connections=3), payloads=((b"x",) * 5, (b"y",) * 2, (b"z",)))
    with pytest.raises(UsageProblem) as caught:
        Engines(whole)
    assert caught.value.found == "lanes=2"
    with pytest.raises(LoadFailed, match="could not be started"):
        Engines(msgspec.structs.replace(whole, payloads=((b"x",) * 3, (b"z",))))


def test_an_open_loop_through_shared_memory_needs_a_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one there is no telling how many requests will be under way."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(UsageProblem, match="needs a ceiling") as caught:
        Engines(with_lanes(3, Poisson(1.0), outputs=True))
    assert caught.value.remedies == ("max_in_flight=3",)
