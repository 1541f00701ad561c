"""Facts of the host, of its software and of its speed: stable, comparable, and without private data in clear."""

from __future__ import annotations

import math
import os
import platform
import re
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import pytest

from pytest_gpuserve.device.host import HOST_VARIABLE, Host, read_core_limit, read_host, read_software
from pytest_gpuserve.device.host_speed import read_speed
from pytest_gpuserve.device.rules import speed_text
from pytest_gpuserve.errors import UsageProblem
from tests.fakes.children.toolkit import printed

MACHINE_ID = "3d1219c7c4c5404aaa1f6d2a48adfda4"

X86_CPUINFO = "processor\t: 0\nmodel name\t: AMD  EPYC 7B13\n\nprocessor\t: 1\nmodel name\t: other\n"
ARM_CPUINFO = "processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system root with the files of a small x86 machine."""
    write(tmp_path, "etc/machine-id", MACHINE_ID + "\n")
    write(tmp_path, "proc/cpuinfo", X86_CPUINFO)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    """Write one file below the root."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def read(root: Path, **environ: str) -> Host:
    """Read the host below that root, with only these environment variables."""
    return read_host(root=root, environ=environ)


def test_the_facts_are_read(root: Path) -> None:
    """Model, cores, memory, kernel and distribution as people write them, and a stable identity.

    What the kernel does not tell, as in many containers, is None.
    """
    host = read(root)
    assert (host.cpu, host.kernel) == ("AMD EPYC 7B13", platform.release())
    assert host.memory_bytes > 2**20
    assert re.fullmatch(r"[0-9a-f]{12}", host.id)
    assert read(root).id == host.id
    assert (host.numa_nodes, host.governor) == (None, None)
    facts = asdict(read_host(environ={}))
    assert all(value for name, value in facts.items() if name not in {"numa_nodes", "governor"})


def test_nodes_and_governor_are_read(root: Path) -> None:
    """Memory nodes are counted; cores with several governors give all of them, once each."""
    for node in (0, 1):
        write(root, f"sys/devices/system/node/node{node}/meminfo", "")
    write(root, "sys/devices/system/node/online", "0-1\n")
    for core, governor in enumerate(["powersave", "performance", "powersave"]):
        write(root, f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor", f"{governor}\n")
    write(root, "sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "other\n")
    host = read(root)
    assert (host.numa_nodes, host.governor) == (2, "performance,powersave")


def test_another_machine_has_another_identity(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its id, processor, memory or cores; a kernel that keeps some megabytes more makes no other one."""

    def has(memory_bytes: int) -> None:
        monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"total": memory_bytes}))

    has(16 * 2**30)
    first = read(root).id
    has(16 * 2**30 - 50 * 2**20)
    assert read(root).id == first
    seen = {first}
    has(32 * 2**30)
    seen.add(read(root).id)
    monkeypatch.setattr("os.cpu_count", lambda: 4096)
    seen.add(read(root).id)
    write(root, "etc/machine-id", "0" * 32)
    seen.add(read(root).id)
    write(root, "proc/cpuinfo", "model name : another\n")
    seen.add(read(root).id)
    assert len(seen) == 5


def test_nothing_private_is_in_clear(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither machine id nor hostname is in any field, whichever of them makes the identity."""
    monkeypatch.setattr("socket.gethostname", lambda: "secret-name")
    by_machine = read(root)
    (root / "etc/machine-id").unlink()
    by_name = read(root)
    assert by_name.id != by_machine.id
    for host in (by_machine, by_name):
        assert MACHINE_ID not in str(host)
        assert "secret-name" not in str(host)


@pytest.mark.parametrize("text", ["", "\n", "uninitialized\n"])
def test_an_image_without_a_machine_id_falls_to_the_next_source(root: Path, text: str) -> None:
    """An empty or not yet set machine id counts as missing, so that machines from one image differ."""
    expected = read(root).id
    write(root, "etc/machine-id", text)
    write(root, "var/lib/dbus/machine-id", MACHINE_ID)
    assert read(root).id == expected


def test_what_has_no_name_gets_what_is_known(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ARM kernels give a processor's numbers only, which still tell them apart; minimal images have no os-release."""
    write(root, "proc/cpuinfo", ARM_CPUINFO)
    assert read(root).cpu == f"{platform.machine()} 0x41 0xd4f 0x0"
    releases: list[dict[str, str]] = [{"NAME": "Debian GNU/Linux", "VERSION_ID": "12"}, {"NAME": "Arch Linux"}]
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: releases.pop(0))
    assert [read(root).system, read(root).system] == ["Debian GNU/Linux 12", "Arch Linux"]
    monkeypatch.setattr(platform, "freedesktop_os_release", (root / "none").read_bytes)
    assert read(root).system == platform.system()


def test_a_pool_can_share_one_name(root: Path) -> None:
    """GPUSERVE_HOST replaces only the identity."""
    assert asdict(read(root, GPUSERVE_HOST="pool_1.a-b")) == {**asdict(read(root)), "id": "pool_1.a-b"}


@pytest.mark.parametrize("name", ["", "a b", "../x", "a" * 65, "näme", "a\n"])
def test_a_name_that_is_none_is_refused(root: Path, name: str) -> None:
    """A wrong GPUSERVE_HOST ends in words that name the variable and the value."""
    with pytest.raises(UsageProblem, match=HOST_VARIABLE) as caught:
        read(root, GPUSERVE_HOST=name)
    assert repr(name) in str(caught.value)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be restricted further")
def test_cores_are_those_that_the_process_may_use() -> None:
    """A process bound to one core counts one, and stays the same host."""
    code = (
        "import os; from pytest_gpuserve.device.host import read_host; before = read_host(environ={});"
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); after = read_host(environ={});"
        "print(after.cores, before.id == after.id)"
    )
    assert printed(code, env=os.environ).split() == ["1", "True"]


def test_versions_are_read_without_importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed distributions give theirs, absent ones are left out; metadata without a version give `unknown`."""
    write(tmp_path, "half_gone-1.0.dist-info/METADATA", "Name: half-gone\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert read_software(["filelock", "no-such-distribution-here", "half-gone"]) == {
        "python": platform.python_version(),
        "filelock": metadata.version("filelock"),
        "half-gone": "unknown",
    }


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        (None, {}, None),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, math.inf),
        ("0::/\n", {"sys/fs/cgroup/cgroup.controllers": "cpuset cpu io\n"}, math.inf),
        ("0::/\n", {"sys/fs/cgroup/cgroup.controllers": "cpuset io\n"}, None),
        (
            "0::/a.slice/b.scope\n",
            {"sys/fs/cgroup/a.slice/cpu.max": "200000 100000\n", "sys/fs/cgroup/a.slice/b.scope/cpu.max": "max 100000"},
            2.0,
        ),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "1 0\n"}, None),
    ],
)
def test_the_tightest_group_limits_the_time(
    root: Path, groups: str | None, files: dict[str, str], limit: float | None
) -> None:
    """Each group counts, up to the mounted root; without any file, as with version 1, the limit is unknown."""
    for name, text in {**files, **({} if groups is None else {"proc/self/cgroup": groups})}.items():
        write(root, name, text)
    assert read_core_limit(root=root) == limit


def test_a_reading_is_the_log_of_seconds() -> None:
    """The fixed work takes between some microseconds and a second on any working machine."""
    found = read_speed()
    assert found is not None
    assert math.log(1e-5) < found < 0


def test_a_host_that_cannot_be_measured_has_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a reading that happens to be alike."""
    for program in ("/no/such/python", "/bin/false", "/bin/true"):
        monkeypatch.setattr(sys, "executable", program)
        assert read_speed() is None


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        (-3.5, -3.5, ""),
        (-3.5, -3.46, ""),
        (-3.5, -3.4, "10.5 % slower"),
        (-3.5, -3.6, "10.5 % faster"),
        (None, -3.5, "unknown"),
        (-3.5, None, "could not be measured"),
    ],
)
def test_only_a_host_that_is_known_to_be_as_fast_is_alike(then: float | None, now: float | None, words: str) -> None:
    """Readings within 5 % are alike; an unknown one is not."""
    text = speed_text(then, now)
    assert words in text
    assert bool(text) is bool(words)
