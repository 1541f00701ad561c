"""Counts in a mapped file: exact, whole at any time, and readable after their writer's death."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.servers.inside.tally import EXECUTION_FIELDS, MAGIC, WORD, Counted, Tally, read_tally


def counted(executions: int, items: int, nanoseconds: int, sizes: dict[int, int]) -> Counted:
    """The counts of executions."""
    return Counted(dict(zip(EXECUTION_FIELDS, (executions, items, nanoseconds), strict=True)), sizes)


EXECUTIONS = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 10**12)), max_size=40)


@settings(max_examples=50)
@given(executions=EXECUTIONS)
def test_what_is_added_is_read(executions: list[tuple[int, int]]) -> None:
    """Executions, items, time and sizes are the added ones; sizes beyond the places are in the sums alone."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tally"
        tally = Tally(path, 8)
        for size, nanoseconds in executions:
            tally.executed(size, nanoseconds)
        assert read_tally(path) == counted(
            len(executions),
            sum(size for size, _ in executions),
            sum(nanoseconds for _, nanoseconds in executions),
            dict(sorted(Counter(size for size, _ in executions if size <= 8).items())),
        )


WRITER = """
import sys
from pathlib import Path
from pytest_gpuserve.servers.inside.tally import Tally
tally = Tally(Path(sys.argv[1]), 4)
print(flush=True)
while True:
    tally.executed(3, 7)
    sum(range(300))  # some microseconds, where a batch takes hundreds
"""


def test_an_execution_is_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    """While another process counts faster than any model, numbers always fit together, and rise."""
    path = tmp_path / "a.tally"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            readings = [read_tally(path) for _ in range(400)]
        finally:
            writer.kill()
    seen = [reading.values["executions"] for reading in readings]
    assert readings == [counted(count, 3 * count, 7 * count, {3: count} if count else {}) for count in seen]
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]
    assert read_tally(path).values["executions"] >= seen[-1]


def test_a_writer_that_died_in_the_middle_holds_up_nobody(tmp_path: Path) -> None:
    """A tally whose last change was not finished is read as it is."""
    path = tmp_path / "a.tally"
    Tally(path, 2).executed(2, 5)
    octets = bytearray(path.read_bytes())
    octets[WORD : 2 * WORD] = (3).to_bytes(WORD, sys.byteorder)
    path.write_bytes(octets)
    assert read_tally(path) == counted(1, 2, 5, {2: 1})


@settings(max_examples=50)
@example(MAGIC.to_bytes(WORD, sys.byteorder) + bytes(4 * WORD))
@given(octets=st.binary(max_size=100))
def test_another_file_is_no_tally(octets: bytes) -> None:
    """A file that does not begin and end like a tally is refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tally"
        path.write_bytes(octets)
        with pytest.raises(ServerFailed, match=r"a\.tally"):
            read_tally(path)


def test_a_tally_is_its_writers_alone(tmp_path: Path) -> None:
    """Only its owner may write a tally, and nothing else is left beside it."""
    Tally(tmp_path / "a.tally", 1)
    assert (tmp_path / "a.tally").stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.tally"]
