"""CPU time of real process trees, whose members come and go while it is counted."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from pytest_gpuserve.device.cpu import ProcessTrees, Stat, TreeClock, below, cores_used, parse_stat, read_processes
from pytest_gpuserve.device.sample import WatchedProcesses

FOREIGN = 2**22 + 7
"""A pid that no process has: above the kernel's limit."""

FAMILY = """
import os, sys, time
def burn(seconds):
    end = sum(os.times()[:2]) + seconds
    while sum(os.times()[:2]) < end: pass
for number in range(12):
    child = os.fork()
    if child == 0:
        burn(0.03 if number % 3 else 0.15)
        os._exit(0)
    os.waitpid(child, 0)
burn(0.1)
print(sum(os.times()[:4]), flush=True)
sys.stdin.read()
"""


def test_children_that_end_are_counted_once() -> None:
    """Of a family whose children come and go while it is looked at, the count is what the kernel says in the end."""
    with subprocess.Popen([sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        os.set_blocking(parent.stdout.fileno(), False)
        clock = TreeClock()
        counts, line = [0.0], None
        while not line:
            seen = read_processes()
            children: dict[int, list[int]] = {}
            for pid, stat in seen.items():
                children.setdefault(stat.parent, []).append(pid)
            clock.follow(below([parent.pid], children, seen.keys()), seen, newborn=True)
            for _ in range(5):
                time.sleep(0.01)
                counts.append(clock.count())
            line = parent.stdout.readline()
        counted = clock.count()
        clock.close()
        parent.stdin.close()
    assert counts == sorted(counts)
    # The kernel counts in ticks of 10 ms, and starting the interpreter is in both.
    assert counted == pytest.approx(float(line), rel=0.1, abs=0.1)


def test_a_process_name_may_hold_anything() -> None:
    """Parentheses and spaces in a command's name do not shift the fields."""
    fields = " ".join(str(number) for number in range(3, 53))
    stat = parse_stat(f"7 (a) R (b 9) {fields}\n".encode())
    assert stat == (4, 14 + 15, 16 + 17, 22)


def test_cores_of_processes_between_two_looks() -> None:
    """What each used in between; of one that took over a pid all of it, and one that has ended is not there."""
    ticks = os.sysconf("SC_CLK_TCK")
    before = {1: Stat(0, 5 * ticks, 0, 10), 2: Stat(1, 9 * ticks, 0, 20), 3: Stat(1, ticks, 0, 30)}
    after = {1: Stat(0, 6 * ticks, 7 * ticks, 10), 2: Stat(1, 3 * ticks, 0, 99), 4: Stat(1, ticks, 0, 98)}
    assert cores_used(before, after, 2.0) == {1: 0.5, 2: 1.5, 4: 0.5}


def test_the_session_knows_its_own() -> None:
    """Its own process and what is below it are ours; init and a pid that nobody has are not."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        trees = ProcessTrees(os.getpid())
        assert trees.is_ours(os.getpid())
        assert trees.is_ours(child.pid)
        assert not trees.is_ours(1)
        assert not trees.is_ours(FOREIGN)
        other = ProcessTrees(child.pid)
        assert not other.is_ours(os.getpid())
        other.watch(WatchedProcesses(server=(os.getpid(),)))
        assert other.is_ours(os.getpid())
        other.close()
        child.kill()
