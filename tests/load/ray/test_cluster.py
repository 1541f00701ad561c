"""What makes loads on Ray is read, looked at and ended rightly; real clusters are loaded from in tests/servers."""

from __future__ import annotations

import importlib.metadata
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import LoadFailed, UsageProblem
from pytest_gpuserve.load.command import main
from pytest_gpuserve.load.ray import cluster as cluster_module
from pytest_gpuserve.load.ray import source as source_module
from pytest_gpuserve.load.ray.address import ClusterAddress
from pytest_gpuserve.load.ray.check import Node
from pytest_gpuserve.load.ray.cluster import (
    LONGEST_FOLDER,
    OTHERS,
    OWN,
    Joining,
    LocalCluster,
    Versions,
    own_cluster_environment,
    short_folder,
)
from pytest_gpuserve.load.ray.source import RayEngine
from pytest_gpuserve.process.ports import free_port
from tests.fakes.children.toolkit import alive, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTION = "--load-engine"

OURS = Versions(python="3.11.7", ray="2.60.0", package="1.2.3")


# -- a cluster of our own


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder for temporary files that nothing else uses, with a short path."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def starting(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a shell script stand for `ray start`; it runs in the cluster's folder."""
    monkeypatch.setattr(cluster_module, "_command", lambda _: ["sh", "-c", script])


def test_a_cluster_can_be_joined_when_its_address_is_whole(
    monkeypatch: pytest.MonkeyPatch, place: Path, tmp_path: Path
) -> None:
    """Half an address is waited for; whoever joins is told where the secret is, which nobody else can read.

    Its workers run this very package, also where it is a checkout that is not installed; that it ends is seen.
    """
    code = "import pytest_gpuserve; print(pytest_gpuserve.__file__)"
    found = f"{sys.executable} -c '{code}' > found"
    end = "while [ ! -e end ]; do sleep 0.01; done; sleep 600 & exit 1"
    starting(monkeypatch, f"{found}; printf 127.0.0.1: > address; sleep 0.3; printf 4711 >> address; {end}")
    with LocalCluster.start(tmp_path / "log") as cluster:
        assert cluster.joining.address == "127.0.0.1:4711"
        token = Path(cluster.joining.environment["RAY_AUTH_TOKEN_PATH"])
        assert len(token.read_text()) == 64
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700
        assert token.parent.parent == place
        imported = Path((token.parent / "found").read_text().strip())
        assert imported.is_relative_to(token.parent)
        assert imported.resolve() == Path(sys.modules["pytest_gpuserve"].__file__ or "").resolve()
        tree = cluster.process.tree()
        assert tree
        assert not cluster.has_ended()
        (token.parent / "end").touch()
        eventually(cluster.has_ended, "its end")
        tree += cluster.process.tree()
    assert not any(alive(process.pid) for process in tree)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "summary"), [("echo why; exit 3", "did not start"), ("exec sleep 600", "did not start in 500 ms")]
)
def test_a_cluster_that_does_not_start_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, place: Path, tmp_path: Path, script: str, summary: str
) -> None:
    """Neither one that ends, whose last words are told, nor one that never gets ready, nor Ctrl-C while it starts."""
    monkeypatch.setattr(cluster_module, "START_SECONDS", 0.5)
    starting(monkeypatch, script)
    with pytest.raises(LoadFailed) as caught:
        LocalCluster.start(tmp_path / "log")
    assert summary in caught.value.summary
    assert caught.value.log_tail == ("why" if "why" in script else "")
    assert list(place.iterdir()) == []

    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster_module, "_wait_for_address", interrupted)
    with pytest.raises(KeyboardInterrupt):
        LocalCluster.start(tmp_path / "log")
    assert list(place.iterdir()) == []


def test_the_first_short_folder_is_taken(tmp_path: Path) -> None:
    """A socket's path has an end; where no place is short enough that is said."""
    long = tmp_path / ("x" * LONGEST_FOLDER)
    long.mkdir()
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short:
        folder = short_folder([long, Path("/no/such"), Path(short), Path("/tmp")])
        assert folder.parent == Path(short)
        assert len(str(folder)) <= LONGEST_FOLDER
        assert short_folder([Path(short)]) != folder
    with pytest.raises(LoadFailed) as caught:
        short_folder([long])
    assert "TMPDIR" in caught.value.remedies[0]


def test_what_is_about_other_clusters_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's `RAY_ADDRESS` leads neither our cluster nor who joins it astray; all else is inherited."""
    for name in OTHERS:
        monkeypatch.setenv(name, "elsewhere")
    monkeypatch.setenv("KEPT", "yes")
    environment = own_cluster_environment()
    assert not OTHERS & environment.keys()
    assert environment["KEPT"] == "yes"
    assert OWN.items() <= environment.items()
    command = Joining("127.0.0.1:1", {"MORE": "a b=c"}, OTHERS).command(["sh", "-c", 'echo "$RAY_ADDRESS|$MORE|$KEPT"'])
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "|a b=c|yes\n"


# -- the engine of a run


class Started:
    """Stands for a cluster of our own, and counts."""

    started: int = 0
    closed: int = 0
    died = False
    joining = Joining("127.0.0.1:4711", {"NAME": "value"})

    @classmethod
    def start(cls, _log: Path) -> Started:
        """Start one."""
        time.sleep(0.05)
        cls.started += 1
        return cls()

    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        return self.died

    def close(self) -> None:
        """End it."""
        type(self).closed += 1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> type[Started]:
    """Let no real cluster be started."""
    fresh = type("Fresh", (Started,), {})
    monkeypatch.setattr(source_module, "LocalCluster", fresh)
    return fresh


def test_a_cluster_is_started_once_and_when_needed(started: type[Started], tmp_path: Path) -> None:
    """Two loads at once start one, which ends once; a run that loads nothing starts none; a dead one is replaced."""
    with RayEngine(None, OPTION) as engine:
        source = engine.source(tmp_path / "log")
        other = engine.source(tmp_path / "log")
        assert source.is_here
        assert started.started == 0
        threads = [threading.Thread(target=each.launches, args=(2,)) for each in (source, other, source)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (started.started, started.closed) == (1, 0)
        assert engine._own is not None
        engine._own.died = True  # type: ignore[attr-defined]
        source.launches(2)
        (launch,) = source.launches(8)
        assert (started.started, started.closed) == (2, 1)
    engine.close()
    assert started.closed == 2
    with RayEngine(None, OPTION):
        pass
    assert (started.started, started.closed) == (2, 2)
    # One launch makes all workers: it is told whose it is and where the cluster is, in the cluster's environment.
    command = list(launch.command)
    assert launch.part == 0
    assert command[:3] == ["env", "NAME=value", sys.executable]
    assert command[-3:] == ["pytest_gpuserve.load.ray", str(os.getpid()), "127.0.0.1:4711"]


@pytest.mark.parametrize(
    "version", ["2.51.1", "2.9.0", "1.99.0", "2", "three", "", None, "2.52.0", "2.60.0rc1", "3.0.0"]
)
def test_ray_that_lets_everybody_in_makes_no_cluster_of_our_own(
    monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    """Before tokens were known there, and where it does not say which it is; a cluster that is there is another's."""

    def told(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", told)
    monkeypatch.setattr(source_module, "check_installed", lambda _: None)
    monkeypatch.setattr(source_module, "check_cluster", lambda *_: ())
    RayEngine(ClusterAddress("head", 6379), OPTION).check()
    if version in {"2.52.0", "2.60.0rc1", "3.0.0"}:
        RayEngine(None, OPTION).check()
        return
    with pytest.raises(UsageProblem, match="everybody") as caught:
        RayEngine(None, OPTION).check()
    assert (version or "") in caught.value.found
    assert "pip install 'ray>=2.52'" in caught.value.remedies


@pytest.mark.parametrize(
    ("hosts", "named", "is_here"),
    [
        ([], "no node with a CPU yet", False),
        (["127.0.0.1"], "1 node (127.0.0.1)", True),
        (["127.0.0.1", "127.0.0.1"], "2 nodes (127.0.0.1)", True),
        (["127.0.0.1", "192.0.2.1"], "2 nodes (127.0.0.1, 192.0.2.1)", False),
    ],
)
def test_a_cluster_that_is_there_is_named_and_never_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hosts: list[str], named: str, *, is_here: bool
) -> None:
    """Nodes of one host count each, their address once; workers are here only if all nodes are."""
    monkeypatch.setattr(source_module, "check_cluster", lambda *_: tuple(Node(host, OURS) for host in hosts))
    with RayEngine(ClusterAddress("head", 10001, by_client=True), OPTION) as engine:
        assert str(engine) == "Ray at ray://head:10001"
        engine.check()
        assert (str(engine), engine.source(tmp_path / "log").is_here) == (f"Ray at ray://head:10001, {named}", is_here)
        (launch,) = engine.source(tmp_path / "log").launches(3)
        assert list(launch.command)[-1] == "ray://head:10001"


# -- the command


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--engine gpu", ["'gpu'", "--engine=ray"]),
        # Of processes of this host there are no workers, and both numbers at once are a mistake.
        ("--workers 2", ["--engine", "--processes 2"]),
        ("--workers 2 --processes 2 --engine ray", ["--processes and --workers contradict"]),
        ("--workers 0 --engine ray", ["--workers"]),
        # Not ``--processes``, of which nothing was typed; no cluster is started for it.
        (
            "--engine ray --workers 3 --concurrency 2",
            ["--workers: 3 processes cannot share 2 connections", "--workers 2 at most"],
        ),
        # Before a request is sent.
        ("--engine 127.0.0.1:{port} --workers 2", ["could not be joined", "Connection refused"]),
    ],
)
def test_the_command_refuses_what_cannot_be(
    capsys: pytest.CaptureFixture[str], started: type[Started], argv: str, words: list[str]
) -> None:
    """By the options that were typed, which is all that it says."""
    assert main(["http://127.0.0.1:1/", *argv.format(port=free_port()).split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(word in captured.err for word in words)
    assert "Traceback" not in captured.err
    assert started.started == 0
