"""Apps of the suites: their refusals of wrong arguments, and a contract test that is run here too."""

from __future__ import annotations

import importlib
import sys

import pytest

from tests.plugin.conftest import REPOSITORY

SUITES = ("distilbert", "catdog", "codegen")
APPS = [str(REPOSITORY / "suites" / suite / "apps") for suite in SUITES]


@pytest.mark.parametrize(
    ("app", "argument", "message"),
    [
        ("distilbert_mosec", "--inference-worker=2", "unrecognized arguments"),
        ("distilbert_mosec", "--slowdown=nan", "not a number of 0 or more"),
        ("distilbert_mosec", "--checkpoint=/nonexistent", "no folder"),
        ("distilbert_pytriton", "--max-queue-delay=10", "unrecognized arguments"),
        ("catdog_litserve", "--max-batch=8", "unrecognized arguments"),
        ("catdog_litserve", "--weights=/nonexistent", "no file"),
        ("catdog_model_only", "--size=huge", "invalid choice"),
    ],
)
def test_wrong_arguments_end_an_app_before_it_serves(
    app: str, argument: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An app ends with exit status 2 and names the wrong or misspelt argument."""
    library = {"model_only": "torch"}.get(name := app.partition("_")[2], name)
    pytest.importorskip(library)
    for folder in APPS:
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "argv", [f"{app}.py", argument])
    with pytest.raises(SystemExit) as end:
        importlib.import_module(app).main()
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert argument.partition("=")[0] in said
