"""Facts of the host and of its software: stable, comparable, and nothing private in clear."""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import pytest

from pytest_gpuserve.device import HOST_VARIABLE, Host, read_host, read_software
from pytest_gpuserve.device.host import is_virtual, read_boost, read_core_limit
from pytest_gpuserve.errors import UsageProblem

MACHINE_ID = "3d1219c7c4c5404aaa1f6d2a48adfda4"

X86_CPUINFO = "processor\t: 0\nmodel name\t: AMD  EPYC 7B13\n\nprocessor\t: 1\nmodel name\t: other\n"
ARM_CPUINFO = "processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\n"
OS_RELEASE = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n# comment\nNAME="Debian GNU/Linux"\nVERSION_ID="12"\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system root with the files of a small x86 machine."""
    write(tmp_path, "etc/machine-id", MACHINE_ID + "\n")
    write(tmp_path, "etc/os-release", OS_RELEASE)
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
    """Model, cores, memory, kernel and distribution come out as people write them."""
    host = read(root)
    assert host.cpu == "AMD EPYC 7B13"
    assert host.system == "Debian GNU/Linux 12"
    assert host.kernel == platform.release()
    assert host.memory_bytes > 2**20
    assert re.fullmatch(r"[0-9a-f]{12}", host.id)


def test_the_identity_is_stable(root: Path) -> None:
    """Reading twice gives one identity."""
    assert read(root).id == read(root).id


def test_this_machine_can_be_read() -> None:
    """The defaults give every fact of the machine that runs the tests, but for what its kernel may not tell."""
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


def test_what_the_kernel_does_not_tell_is_unknown(root: Path) -> None:
    """Without their folders, as in many containers and virtual machines, both are None."""
    host = read(root)
    assert (host.numa_nodes, host.governor) == (None, None)


@pytest.mark.parametrize(
    ("name", "text"),
    [("etc/machine-id", "0" * 32), ("proc/cpuinfo", "model name : another\n")],
    ids=["machine", "processor"],
)
def test_another_machine_has_another_identity(root: Path, name: str, text: str) -> None:
    """A change of machine id or processor changes the identity."""
    before = read(root).id
    write(root, name, text)
    assert read(root).id != before


def test_hardware_counts_in_the_identity(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same machine with more cores is another one; a kernel that keeps some megabytes more is not."""
    before = read(root).id
    whole = type("Memory", (), {"total": 16 * 2**30})
    less = type("Memory", (), {"total": 16 * 2**30 - 50 * 2**20})
    monkeypatch.setattr("psutil.virtual_memory", lambda: whole)
    with_memory = read(root).id
    monkeypatch.setattr("psutil.virtual_memory", lambda: less)
    assert read(root).id == with_memory
    monkeypatch.undo()
    monkeypatch.setattr("os.cpu_count", lambda: 4096)
    assert read(root).id != before


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


def test_a_processor_without_a_model_name_is_named_by_its_numbers(root: Path) -> None:
    """ARM kernels give numbers only; they still tell processors apart."""
    write(root, "proc/cpuinfo", ARM_CPUINFO)
    assert read(root).cpu == f"{platform.machine()} 0x41 0xd4f 0x0"


def test_a_system_without_its_file_has_the_kernel_s_name(root: Path) -> None:
    """Minimal images have no os-release."""
    (root / "etc/os-release").unlink()
    assert read(root).system == platform.system()


def test_a_pool_can_share_one_name(root: Path) -> None:
    """GPUSERVE_HOST replaces the identity and nothing else."""
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
        "import os; from pytest_gpuserve.device import read_host; before = read_host(environ={});"
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); after = read_host(environ={});"
        "print(after.cores, before.id == after.id)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["1", "True"]


def test_versions_are_read_without_importing() -> None:
    """Installed distributions give their version, absent ones are left out, and Python always is there."""
    versions = read_software(["filelock", "no-such-distribution-here"])
    assert versions == {"python": platform.python_version(), "filelock": metadata.version("filelock")}


def test_a_half_removed_distribution_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata without a version gives the word `unknown`, never None."""
    write(tmp_path, "half_gone-1.0.dist-info/METADATA", "Name: half-gone\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert read_software(["half-gone"])["half-gone"] == "unknown"


@pytest.mark.parametrize(
    ("name", "text", "on"),
    [
        ("intel_pstate/no_turbo", "0", True),
        ("intel_pstate/no_turbo", "1", False),
        ("cpufreq/boost", "1", True),
        ("cpufreq/boost", "0", False),
    ],
)
def test_boost_is_read_from_either_file(root: Path, name: str, text: str, *, on: bool) -> None:
    """Intel's file says when turbo is off, the others' when boost is on; what turns it off is written the other way."""
    write(root, f"sys/devices/system/cpu/{name}", f"{text}\n")
    boost = read_boost(root=root)
    assert boost is not None
    assert boost.on is on
    off = {"intel_pstate/no_turbo": "1", "cpufreq/boost": "0"}[name]
    assert boost.turn_off == f"echo {off} | sudo tee /sys/devices/system/cpu/{name}"


@pytest.mark.parametrize("text", [None, "", "maybe"])
def test_boost_that_is_not_told_is_unknown(root: Path, text: str | None) -> None:
    """No file, or one that says neither, is no answer."""
    if text is not None:
        write(root, "sys/devices/system/cpu/cpufreq/boost", text)
    assert read_boost(root=root) is None


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, math.inf),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io\n"}, math.inf),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cgroup.controllers": "cpuset io\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/a.slice/b.scope\n",
                "sys/fs/cgroup/a.slice/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/a.slice/b.scope/cpu.max": "max 100000\n",
            },
            2.0,
        ),
        ({"proc/self/cgroup": "0::/not/mounted\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4.0),
        (
            {
                "proc/self/cgroup": "3:cpuset:/\n2:cpu,cpuacct:/docker/x\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            math.inf,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "many\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1 0\n"}, None),
    ],
)
def test_the_tightest_group_limits_the_time(root: Path, files: dict[str, str], limit: float | None) -> None:
    """Of both versions of control groups, up to the root of what is mounted; where none tells it is unknown."""
    for name, text in files.items():
        write(root, name, text)
    assert read_core_limit(root=root) == limit


@pytest.mark.parametrize(
    ("text", "expected"),
    [("flags\t\t: fpu hypervisor sse\n", True), ("flags\t\t: fpu sse\n", False), (ARM_CPUINFO, None), ("", None)],
)
def test_a_hypervisor_is_seen_where_processors_tell(root: Path, text: str, *, expected: bool | None) -> None:
    """By the flag of x86; other processors have none, so nothing is known of them."""
    write(root, "proc/cpuinfo", text)
    assert is_virtual(root=root) is expected
