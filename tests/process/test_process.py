"""A child process seen from its owner: start, exit, log, tree, ports, stop; and ports that are free or claimed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.queues import Queue
from pathlib import Path

import psutil
import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process import ports as module
from pytest_gpuserve.process.child import Command, Process
from pytest_gpuserve.process.ports import claimed_ports, free_port, port_owner
from tests.fakes.children.toolkit import SAFETY_SECONDS, alive, child, eventually, program, report


def test_the_child_gets_its_arguments_environment_and_folder(tmp_path: Path) -> None:
    """The child runs with exactly the arguments, variables (one mark added) and folder of its command."""
    shown = Command(
        ("/bin/sh", "-c", 'echo "$0|$1|$(pwd)"; env', "a b", "ü'"), {"ONLY": "this"}, tmp_path, tmp_path / "l"
    )
    with Process.start(shown) as process:
        assert process.wait(SAFETY_SECONDS) == 0
        first, *variables = process.tail().splitlines()
    assert first == f"a b|ü'|{tmp_path}"
    names = {line.split("=")[0] for line in variables}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"ONLY", "PYTEST_GPUSERVE_TREE"}


@pytest.fixture
def background() -> Iterator[None]:
    """Ignore what a shell has ignored by all that it starts in the background."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("background")
def test_the_child_starts_with_default_signals_and_no_foreign_descriptor(tmp_path: Path) -> None:
    """Neither ignored or blocked signals nor descriptors of owner, supervisor or another server reach the child."""

    def descriptors(pid: int) -> set[str]:
        return {entry.name for entry in Path(f"/proc/{pid}/fd").iterdir()}

    sleep = program("sleep", "600", folder=tmp_path)
    with Process.start(sleep) as other, Process.start(sleep) as process:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        # Signal 32 is the C library's own, for its threads.
        assert int(status["SigIgn"], 16) & ~(1 << 31) == int(status["SigBlk"], 16) == 0
        # A program that is still being loaded has its libraries open for a moment; a leak stays.
        eventually(
            lambda: descriptors(other.pid) == descriptors(process.pid) == {"0", "1", "2"},
            "only the three standard descriptors are open",
        )


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [("exit 0", 0, "exit code 0"), ("exit 3", 3, "exit code 3"), ("kill -9 $$", -9, "killed by SIGKILL")],
)
def test_how_a_child_ended_is_told(script: str, status: int, words: str, tmp_path: Path) -> None:
    """An ended child has a code, 0 included, or the signal's name and a negative status, also after stop."""
    os.mkfifo(tmp_path / "fifo")
    with Process.start(program("sh", "-c", f"read word < {tmp_path}/fifo; {script}", folder=tmp_path)) as process:
        assert process.exit_status() is None
        assert process.describe_exit() == "still running"
        (tmp_path / "fifo").write_text("go\n")
        assert process.wait(SAFETY_SECONDS) == status
        assert process.describe_exit() == words
    assert process.exit_status() == status


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("no-such-server", "--port=1"), ["cannot execute 'no-such-server'", "No such file", "PATH=", "python="]),
        (("./here",), ["cannot execute './here'", "Permission denied"]),
        (("/bin/nul\0l",), ["cannot execute", "null "]),
    ],
)
def test_a_program_that_cannot_be_executed_is_named(argv: tuple[str, ...], words: list[str], tmp_path: Path) -> None:
    """A failed exec is an error with the program, the system's reason, the places looked at and a remedy."""
    (tmp_path / "here").write_text("not executable")
    owned = tmp_path / "owned"
    owned.mkdir()
    with pytest.raises(ServerFailed) as failure:
        Process.start(program(*argv, folder=tmp_path), owned_folders=[owned])
    for word in words:
        assert word in str(failure.value)
    assert not owned.exists()
    assert not [one for one in psutil.Process().children() if "supervisor.py" in " ".join(one.cmdline())]


def test_a_missing_folder_or_log_is_named(tmp_path: Path) -> None:
    """A working folder that cannot be entered and a log that cannot be written are distinguished from the program."""
    missing = tmp_path / "missing"
    with pytest.raises(ServerFailed, match=r"cannot enter the folder .*missing"):
        Process.start(Command(("true",), os.environ, missing, tmp_path / "log"))
    with pytest.raises(ServerFailed, match=r"No such file or directory: .*missing/log"):
        Process.start(Command(("true",), os.environ, tmp_path, missing / "log"))


@pytest.mark.parametrize("folder", [Path("relative"), Path("/"), Path.home(), Path.cwd()])
def test_precious_folders_cannot_be_owned(folder: Path, tmp_path: Path) -> None:
    """A relative folder, or one that holds the home or the working folder, is refused before anything starts."""
    with pytest.raises(ValueError, match="cannot be owned"):
        Process.start(program("true", folder=tmp_path), owned_folders=[folder])
    assert not (tmp_path / "log").exists()


def test_a_chatty_child_is_not_held_up_and_its_tail_is_short(tmp_path: Path) -> None:
    """5 MB before listening block nothing; only the end of this start's log is read."""
    port = free_port()
    with Process.start(child("model_server", port, "chatter=5", folder=tmp_path)) as process:
        eventually(lambda: bool(process.listening_addresses()), "the chatty server listens")
        assert process.listening_addresses() == {("127.0.0.1", port)}
        tail = process.tail(5).splitlines()
    assert (tmp_path / "log").stat().st_size >= 5 << 20
    assert len(tail) == 5
    assert all(set(line) == {"x", " ", "…"} and len(line) == 403 for line in tail)
    with Process.start(program("sleep", "600", folder=tmp_path)) as process:
        assert process.tail() == ""
    assert (tmp_path / "log").stat().st_size >= 5 << 20


def test_binary_garbage_in_the_log_becomes_printable(tmp_path: Path) -> None:
    """Random bytes, colours and carriage returns in the log end as printable lines that keep their text."""
    noise = "import os; os.write(1, os.urandom(200_000) + b'\\n\\x1b[31mred\\x1b[0m\\tline\\n50 %\\r100 %\\0\\xff\\n')"
    with Process.start(program(sys.executable, "-c", noise, folder=tmp_path)) as process:
        assert process.wait(SAFETY_SECONDS) == 0
        tail = process.tail()
    assert all(line.isprintable() for line in tail.splitlines())
    assert tail.splitlines()[-3:] == ["red     line", "50 %", "100 %\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"]


def test_the_tree_has_daemons_and_other_sessions_and_stop_ends_them(tmp_path: Path) -> None:
    """Grandchildren in a new session and daemons forked twice are seen, the child first, and none survives stop."""
    with Process.start(child("family", tmp_path / "report", "stay", folder=tmp_path)) as process:
        pids = report(tmp_path / "report")
        members = [member.pid for member in process.tree()]
        assert members[0] == process.pid == pids["main"]
        assert set(members) == set(pids.values())
        process.stop(0.2)
        assert not any(map(alive, pids.values()))
        assert process.tree() == []
        assert process.listening_addresses() == set()
    assert process.exit_status() == -signal.SIGTERM


def test_what_an_exited_child_leaves_running_is_ended(tmp_path: Path) -> None:
    """The exit of the child is told at once while its orphans still run; stop ends these too, with owned folders.

    It may be called any number of times.
    """
    owned = tmp_path / "owned"
    (owned / "deep").mkdir(parents=True)
    (owned / "deep" / "model.bin").write_bytes(b"x")
    command = child("family", tmp_path / "report", "leave", folder=tmp_path)
    with Process.start(command, owned_folders=[owned]) as process:
        pids = report(tmp_path / "report")
        assert process.wait(SAFETY_SECONDS) == 7
        assert {member.pid for member in process.tree()} == set(pids.values()) - {process.pid}
        assert owned.exists()
        for _ in range(2):
            process.stop(0.2)
            assert not owned.exists()
    assert not any(map(alive, pids.values()))


def stubborn(folder: Path) -> Process:
    """A child that ignores SIGTERM."""
    up = folder / "up"
    script = "trap '' TERM; touch \"$0\"; exec sleep 600"
    process = Process.start(program("sh", "-c", script, str(up), folder=folder))
    eventually(up.exists, "it ignores SIGTERM")
    return process


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    """SIGTERM without effect is followed by SIGKILL, not before the grace has passed."""
    with stubborn(tmp_path) as process:
        before = time.monotonic()
        process.stop(0.5)
        assert time.monotonic() - before >= 0.5
        assert process.describe_exit() == "killed by SIGKILL"
    assert not alive(process.pid)


def test_a_child_that_is_asked_to_end_does_so_while_nobody_waits(tmp_path: Path) -> None:
    """A child that was asked to end has the usual grace, and ``stop`` then finds it gone."""
    with stubborn(tmp_path) as process:
        process.ask_to_end(0.2)
        eventually(lambda: process.exit_status() == -signal.SIGKILL, "it ends")
        assert not alive(process.pid)


def test_the_loss_of_the_supervisor_is_made_up_for(tmp_path: Path) -> None:
    """When the supervisor is killed the child dies with it, and stop still finds and ends all its orphans."""
    owned = tmp_path / "owned"
    owned.mkdir()
    command = child("family", tmp_path / "report", "stay", folder=tmp_path)
    with Process.start(command, owned_folders=[owned]) as process:
        pids = report(tmp_path / "report")
        os.kill(process._supervisor.pid, signal.SIGKILL)
        assert process.wait(SAFETY_SECONDS) == -signal.SIGKILL
        eventually(lambda: not alive(pids["main"]), "the child dies with its supervisor")
        assert {member.pid for member in process.tree()} == set(pids.values()) - {process.pid}
    assert not any(map(alive, pids.values()))
    assert not owned.exists()


def test_a_port_owner_is_named_with_pid_and_command_line() -> None:
    """Unless its pid does not count, which is asked after it was seen: a worker that was started since is known."""
    port = free_port()
    assert port_owner(port) is None
    with socket.create_server(("127.0.0.1", port)) as server:
        described = port_owner(port)
        assert described is not None
        assert described.startswith(f"pid {os.getpid()} (")
        assert Path(psutil.Process().cmdline()[0]).name in described
        assert port_owner(port, besides=lambda: [os.getpid()]) is None

        def closed() -> list[int]:
            server.close()
            return []

        assert port_owner(port, besides=closed) == described
    with socket.create_server(("", 0)) as everywhere:
        assert port_owner(everywhere.getsockname()[1]) is not None


def claim(answers: Queue[list[int]]) -> None:
    """Claim one port of those that are left."""
    with claimed_ports(1) as ports:
        answers.put(ports)


def few(monkeypatch: pytest.MonkeyPatch, count: int) -> list[int]:
    """Let there be so many candidates only, which are free."""
    with claimed_ports(count) as candidates:
        monkeypatch.setattr(module, "_candidates", lambda: iter(candidates))
    return candidates


def test_a_claimed_port_is_given_to_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one of two ports is claimed, without a listener, another process gets the other one."""
    candidates = few(monkeypatch, 2)
    context = multiprocessing.get_context("fork")
    answers: Queue[list[int]] = context.Queue()
    with claimed_ports(1) as claimed:
        child = context.Process(target=claim, args=(answers,))
        child.start()
        got = answers.get(timeout=30)
        child.join()
    assert [*claimed, *got] == candidates


def test_a_port_is_free_again_after_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same port can be claimed twice, one after the other; while it is claimed it cannot, and the error counts."""
    candidates = few(monkeypatch, 1)
    for _ in range(2):
        with claimed_ports(1) as ports:
            assert ports == candidates
            with pytest.raises(ServerFailed, match="0 of the ports from 15000 on are free"), claimed_ports(2):
                pass


def test_a_port_where_somebody_listens_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port with a listener is passed over for the next candidate."""
    candidates = few(monkeypatch, 2)
    with socket.create_server(("127.0.0.1", candidates[0])):
        assert free_port() == candidates[1]


def test_no_port_is_one_that_an_outgoing_connection_may_get(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ports lie below the kernel's range if any are free there; if the range covers all, ports are still found."""
    file = tmp_path / "range"
    monkeypatch.setattr(module, "_EPHEMERAL", file)
    for text, low, high in [("15010\t60999\n", 15_000, 15_010), ("1024 65535", 15_000, 65_536), ("?", 15_000, 32_768)]:
        file.write_text(text)
        with ExitStack() as stack:
            (port,) = stack.enter_context(claimed_ports(1))
            assert low <= port < high
