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
from pytest_gpuserve.load.ray.cluster import LONGEST_FOLDER, Joining, LocalCluster, short_folder
from pytest_gpuserve.load.ray.environment import OTHERS, OWN, own_cluster_environment
from pytest_gpuserve.load.ray.source import RayEngine
from pytest_gpuserve.load.ray.versions import Versions
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
    """Half an address is waited for; whoever joins is told where the secret is, which nobody else can read."""
    starting(
        monkeypatch,
        "printf 127.0.0.1: > address; sleep 0.3; printf 4711 >> address; exec sleep 600",
    )
    with LocalCluster.start(tmp_path / "log") as cluster:
        assert cluster.joining.address == "127.0.0.1:4711"
        token = Path(cluster.joining.environment["RAY_AUTH_TOKEN_PATH"])
        assert len(token.read_text()) == 64
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700
        assert token.parent.parent == place
        (process,) = cluster.process.tree()
    assert not alive(process.pid)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "summary"), [("echo why; exit 3", "did not start"), ("exec sleep 600", "did not start in 500 ms")]
)
def test_a_cluster_that_does_not_start_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, place: Path, tmp_path: Path, script: str, summary: str
) -> None:
    """Neither one that ends, whose last words are told, nor one that never gets ready."""
    monkeypatch.setattr(cluster_module, "START_SECONDS", 0.5)
    starting(monkeypatch, script)
    with pytest.raises(LoadFailed) as caught:
        LocalCluster.start(tmp_path / "log")
    assert summary in caught.value.summary
    assert caught.value.log_tail == ("why" if "why" in script else "")
    assert list(place.iterdir()) == []


def test_an_interrupted_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch, place: Path, tmp_path: Path) -> None:
    """Ctrl-C while it starts ends what was begun."""
    starting(monkeypatch, "exec sleep 600")

    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster_module, "_wait_for_address", interrupted)
    with pytest.raises(KeyboardInterrupt):
        LocalCluster.start(tmp_path / "log")
    assert list(place.iterdir()) == []


def test_its_workers_run_this_very_package(monkeypatch: pytest.MonkeyPatch, place: Path, tmp_path: Path) -> None:
    """Also where it is a checkout that is not installed: it comes first on their path."""
    code = "import pytest_gpuserve; print(pytest_gpuserve.__file__)"
    starting(
        monkeypatch,
        f"{sys.executable} -c '{code}' > found && printf 127.0.0.1:1 > address; exec sleep 600",
    )
    with LocalCluster.start(tmp_path / "log"):
        (found,) = place.glob("gpuserve-ray-*/found")
        imported = Path(found.read_text().strip())
        assert imported.is_relative_to(found.parent)
        assert imported.resolve() == Path(sys.modules["pytest_gpuserve"].__file__ or "").resolve()


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
    """Two loads at once start one; a run that loads nothing starts none; it is ended once."""
    with RayEngine(None, OPTION) as engine:
        source = engine.source(tmp_path / "log")
        other = engine.source(tmp_path / "log")
        assert started.started == 0
        threads = [threading.Thread(target=each.launches, args=(2,)) for each in (source, other, source)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (started.started, started.closed) == (1, 0)
    assert started.closed == 1
    engine.close()
    assert started.closed == 1
    with RayEngine(None, OPTION):
        pass
    assert (started.started, started.closed) == (1, 1)


def test_a_cluster_that_has_died_is_replaced(started: type[Started], tmp_path: Path) -> None:
    """By the next load; what is left of the dead one is removed before."""
    with RayEngine(None, OPTION) as engine:
        source = engine.source(tmp_path / "log")
        source.launches(2)
        assert engine._own is not None
        engine._own.died = True  # type: ignore[attr-defined]
        source.launches(2)
        source.launches(2)
        assert (started.started, started.closed) == (2, 1)
    assert (started.started, started.closed) == (2, 2)


def test_a_cluster_that_ends_by_itself_is_seen(monkeypatch: pytest.MonkeyPatch, place: Path, tmp_path: Path) -> None:
    """And only then."""
    starting(monkeypatch, "printf 127.0.0.1:1 > address; while [ ! -e end ]; do sleep 0.01; done; exit 1")
    with LocalCluster.start(tmp_path / "log") as cluster:
        assert not cluster.has_ended()
        (folder,) = place.glob("gpuserve-ray-*")
        (folder / "end").touch()
        eventually(cluster.has_ended, "its end")


@pytest.mark.parametrize("version", ["2.51.1", "2.9.0", "1.99.0", "2", "three", ""])
def test_ray_that_lets_everybody_in_makes_no_cluster_of_our_own(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Before tokens were known there, and where it does not say which it is; a cluster that is there is another's."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    monkeypatch.setattr(source_module, "check_installed", lambda _: None)
    with pytest.raises(UsageProblem, match="everybody") as caught:
        RayEngine(None, OPTION).check()
    assert version in caught.value.found
    assert "pip install 'ray>=2.52'" in caught.value.remedies
    monkeypatch.setattr(source_module, "check_cluster", lambda *_: ())
    RayEngine(ClusterAddress("head", 6379), OPTION).check()


@pytest.mark.parametrize("version", ["2.52.0", "2.60.0rc1", "3.0.0", "2.100.0"])
def test_ray_that_knows_secrets_may_make_one(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """From the first one that does."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    monkeypatch.setattr(source_module, "check_installed", lambda _: None)
    RayEngine(None, OPTION).check()


def test_ray_without_a_version_makes_no_cluster_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not known is no pass."""

    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    monkeypatch.setattr(source_module, "check_installed", lambda _: None)
    with pytest.raises(UsageProblem, match="everybody"):
        RayEngine(None, OPTION).check()


def test_one_launch_makes_all_workers(started: type[Started], tmp_path: Path) -> None:
    """The coordinator is told whose it is and where the cluster is, in the cluster's environment; all is here."""
    with RayEngine(None, OPTION) as engine:
        source = engine.source(tmp_path / "log")
        (launch,) = source.launches(8)
    assert source.is_here
    assert launch.part == 0
    command = list(launch.command)
    assert command[:2] == ["env", "NAME=value"]
    assert command[-3:] == ["pytest_gpuserve.load.ray", str(os.getpid()), "127.0.0.1:4711"]
    assert command[2] == sys.executable


def test_a_cluster_that_is_there_is_named_and_never_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nodes of one host count each, their address once; workers are here only if all nodes are."""
    engine = RayEngine(ClusterAddress("head", 10001, by_client=True), OPTION)
    assert str(engine) == "Ray at ray://head:10001"
    found: list[tuple[Node, ...]] = [
        (),
        (Node("127.0.0.1", OURS),),
        (Node("127.0.0.1", OURS), Node("127.0.0.1", OURS)),
        (Node("127.0.0.1", OURS), Node("192.0.2.1", OURS)),
    ]
    told = []
    for nodes in found:
        monkeypatch.setattr(source_module, "check_cluster", lambda *_, nodes=nodes: nodes)
        engine.check()
        told.append((str(engine), engine.source(tmp_path / "log").is_here))
    assert told == [
        ("Ray at ray://head:10001, no node with a CPU yet", False),
        ("Ray at ray://head:10001, 1 node (127.0.0.1)", True),
        ("Ray at ray://head:10001, 2 nodes (127.0.0.1)", True),
        ("Ray at ray://head:10001, 2 nodes (127.0.0.1, 192.0.2.1)", False),
    ]
    (launch,) = engine.source(tmp_path / "log").launches(3)
    assert list(launch.command)[-1] == "ray://head:10001"
    engine.close()


# -- the command


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What the command says of wrong arguments, which is all that it does."""
    assert main(["http://127.0.0.1:1/", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_the_command_refuses_what_is_no_engine(capsys: pytest.CaptureFixture[str]) -> None:
    """By its own option's name."""
    told = refused(capsys, "--engine", "gpu")
    assert "'gpu'" in told
    assert "--engine=ray" in told


def test_the_command_refuses_a_cluster_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Before a request is sent."""
    told = refused(capsys, "--engine", f"127.0.0.1:{free_port()}", "--workers", "2")
    assert "could not be joined" in told
    assert "Connection refused" in told


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--workers", "2"], ["--engine", "--processes 2"]),
        (["--workers", "2", "--processes", "2", "--engine", "ray"], ["--processes and --workers contradict"]),
        (["--workers", "0", "--engine", "ray"], ["--workers"]),
    ],
)
def test_the_command_refuses_workers_that_mean_nothing(
    capsys: pytest.CaptureFixture[str], argv: list[str], words: list[str]
) -> None:
    """Of processes of this host there are no workers, and both numbers at once are a mistake."""
    told = refused(capsys, *argv)
    assert all(word in told for word in words)


def test_too_few_users_are_told_by_the_option_that_was_typed(
    capsys: pytest.CaptureFixture[str], started: type[Started]
) -> None:
    """``--workers`` and not ``--processes``, of which nothing was typed; no cluster is started for it."""
    told = refused(capsys, "--engine", "ray", "--workers", "3", "--concurrency", "2")
    assert "--workers: 3 processes cannot share 2 connections" in told
    assert "--workers 2 at most" in told
    assert started.started == 0


def test_a_run_without_ray_loads_no_ray() -> None:
    """The session's modules, with all that they import, leave Ray's library alone."""
    code = (
        "import sys, pytest_gpuserve.session, pytest_gpuserve.load.__main__, pytest_gpuserve.load.ray.source;"
        " sys.exit('ray' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[2])
