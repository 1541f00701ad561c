"""What users keep and other programs read stays as it is, to the byte, whatever becomes of the code.

``GPUSERVE_FREEZE=1 pytest tests/project/test_frozen.py`` writes the files anew; the diff is then what users will see.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from pytest_gpuserve.report.markdown import comment
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.result_json import document as json_document
from pytest_gpuserve.report.results import SessionResult
from pytest_gpuserve.report.terminal import table, totals_line
from tests.report.html_results import session_result

FROZEN: Final = Path(__file__).with_name("frozen")


def terminal(result: SessionResult) -> str:
    """The table and the lines below it."""
    drawn = table(result.rows, width=140, color=False)
    return "\n".join([drawn, totals_line(result), next_step(result), ""])


FORMS: Final[dict[str, Callable[[SessionResult], str]]] = {
    "result.json": json_document,
    "comment.md": comment,
    "terminal.txt": terminal,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stored", [True, False])
def test_a_recorded_session_reads_as_ever(form: str, *, stored: bool) -> None:
    """JSON, comment and table of the same session are the frozen ones."""
    path = FROZEN / f"{'stored' if stored else 'against'}.{form}"
    text = FORMS[form](session_result(2, stored=stored))
    if os.environ.get("GPUSERVE_FREEZE"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
