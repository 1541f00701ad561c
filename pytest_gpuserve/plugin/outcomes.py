"""Outcomes of the tests that measure: the reasons of those that did not pass, and the ends of their servers' logs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.process.logs import read_tail
from pytest_gpuserve.process.secrets import SECRET_NAME, without_secrets
from pytest_gpuserve.report.results import LogTail, RunResult, TestResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pytest

    from pytest_gpuserve.servers.instance import Instance

LOGS_SHOWN: Final = 2
"""Number of a test's last servers whose log ends a report shows."""

LOG_LINES: Final = 40

PROBLEM_CHARACTERS: Final = 4000

CUT: Final = "...Full output truncated"
"""pytest's note at the end of an explanation that it has cut for a terminal. It cuts none in CI."""


class Outcomes:
    """Outcomes, kept from pytest's reports of each phase of a test."""

    def __init__(self) -> None:
        self._outcomes: dict[str, str] = {}
        self._problems: dict[str, str] = {}
        self._explained: dict[str, list[Sequence[str]]] = {}
        self._logs: dict[str, list[Path]] = {}
        self._tails: dict[str, tuple[LogTail, ...]] = {}
        self._secrets: list[Mapping[str, str]] = []
        self._under_way = ""

    def begin(self, nodeid: str) -> None:
        """Set the current test, which owns all servers that are started from now on; a repeated test begins anew."""
        self._under_way = nodeid
        self._problems.pop(nodeid, None)
        self._explained.pop(nodeid, None)

    def explained(self, lines: Sequence[str]) -> None:
        """Remember the explanation of a comparison, headline first, because pytest may truncate it."""
        self._explained.setdefault(self._under_way, []).append(lines)

    def logged(self, log: Path, environment: Mapping[str, str]) -> None:
        """Remember the log of a server that is being started for the current test.

        Args:
            environment: Its variables; some may be secret.
        """
        self._logs.setdefault(self._under_way, []).append(log)
        # Other variables, such as its ports, differ in each start.
        secrets = {name: value for name, value in environment.items() if SECRET_NAME.search(name)}
        if secrets not in self._secrets:
            self._secrets.append(secrets)

    def joined(self, instance: Instance) -> None:
        """Remember the log of a running server that the current test loads too."""
        if instance.process is not None:
            self._logs.setdefault(self._under_way, []).append(instance.process.command.log)

    def keep(self, nodeid: str, report: pytest.TestReport) -> None:
        """Keep the outcome of a test's phase."""
        if report.failed and self._outcomes.get(nodeid) != "failed":
            # Also for a test that had been skipped until then: the error is the reason why it did not pass.
            self._problems[nodeid] = self._said(nodeid, report)
        elif not report.passed:
            self._problems.setdefault(nodeid, self._said(nodeid, report))
        if report.when == "call":
            self._outcomes[nodeid] = report.outcome
        elif report.when == "setup" and not report.passed:
            self._outcomes[nodeid] = "error" if report.failed else report.outcome
        elif report.when == "teardown":
            if report.failed:
                self._outcomes[nodeid] = "error"
            # Read now, because another test's fixture may remove the folder of the log.
            logs = self._logs.get(nodeid, [])[-LOGS_SHOWN:]
            self._tails[nodeid] = tuple(
                LogTail(log.stem, read_tail(log, start=0, lines=LOG_LINES, shown=self._shown))
                for log in logs
                if log.is_file()
            )

    def interrupt(self, nodeid: str) -> None:
        """Note that a test was cut short."""
        self._outcomes[nodeid] = "interrupted"

    def passed(self, nodeid: str) -> bool:
        """Whether a test has passed so far."""
        return self._outcomes.get(nodeid) == "passed"

    def results(self, loads: Callable[[str], list[RunResult]]) -> tuple[TestResult, ...]:
        """All tests in the order of their runs, with the loads of each by its id."""
        return tuple(
            TestResult(
                nodeid,
                outcome,
                loads(nodeid),
                "" if outcome == "passed" else self._problems.get(nodeid, ""),
                self._tails.get(nodeid, ()),
            )
            for nodeid, outcome in self._outcomes.items()
        )

    def _said(self, nodeid: str, report: pytest.TestReport) -> str:
        """Reason why a test did not pass: an assertion's explanation, without the code around it."""
        crash = getattr(report.longrepr, "reprcrash", None)
        skipped = report.longrepr[2] if isinstance(report.longrepr, tuple) else None
        text = skipped or getattr(crash, "message", None) or report.longreprtext
        # Masked before it is cut, because half a secret would not be recognised.
        shown = self._shown(uncut(text, self._explained.get(nodeid, ())))
        return shown if len(shown) <= PROBLEM_CHARACTERS else f"{shown[:PROBLEM_CHARACTERS]} ..."

    def _shown(self, text: str) -> str:
        for secrets in (*self._secrets, os.environ):
            text = without_secrets(text, secrets)
        return text


def uncut(text: str, explanations: Sequence[Sequence[str]]) -> str:
    """Restore the last of a test's explanations, each headline first, if pytest has cut it for a terminal."""
    shown = [lines for lines in explanations if lines[0] in text]
    if CUT not in text or not shown:
        return text
    return text[: text.rindex(shown[-1][0])] + "\n".join(shown[-1])
