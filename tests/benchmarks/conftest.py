"""One table of all that was measured, printed at the end; nginx for those who ask."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.benchmarks.rows import Table
from tests.benchmarks.servers import nginx

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE_VARIABLE = "GPUSERVE_BENCH_TABLE"
"""Names a file to which the table is written as well."""

TABLE = pytest.StashKey[Table]()


@pytest.fixture(scope="session")
def table(pytestconfig: pytest.Config) -> Table:
    """Where rows go."""
    return pytestconfig.stash.setdefault(TABLE, Table())


@pytest.fixture(scope="module")
def nginx_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An nginx that answers 200."""
    with nginx(tmp_path_factory.mktemp("nginx")) as url:
        yield url


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table, whatever became of the tests."""
    table = config.stash.get(TABLE, None)
    if table is None or not table.rows:
        return
    text = table.markdown()
    terminalreporter.section("benchmarks against the peers")
    terminalreporter.write_line(text)
    if file := os.environ.get(TABLE_VARIABLE):
        Path(file).write_text(f"{text}\n")
