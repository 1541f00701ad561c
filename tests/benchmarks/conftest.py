"""One table of all that was measured, printed at the end."""

from __future__ import annotations

import pytest

from tests.benchmarks.rows import Table

TABLE = pytest.StashKey[Table]()


@pytest.fixture(scope="session")
def table(pytestconfig: pytest.Config) -> Table:
    """Where rows go."""
    return pytestconfig.stash.setdefault(TABLE, Table())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table, whatever became of the tests."""
    table = config.stash.get(TABLE, None)
    if table is not None:
        terminalreporter.section("benchmarks against the peers")
        table.show()
