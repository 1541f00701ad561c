"""What holds for the apps of several suites: what their imports bring, their seeds, and wrong arguments."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from tests.plugin.conftest import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable

SUITES = ("distilbert", "catdog", "codegen")
APPS = [str(REPOSITORY / "suites" / suite / "apps") for suite in SUITES]


def printed(program: str) -> list[str]:
    """The lines that a new interpreter prints, which finds all apps as a script of theirs does."""
    begin = f"import sys\nsys.path[:0] = {APPS!r}\n"
    command = [sys.executable, "-c", begin + program]
    # A deadline that only a hanging child reaches.
    return subprocess.check_output(command, text=True, timeout=300).splitlines()


def test_what_needs_no_torch_brings_none() -> None:
    """Processes that tokenize or speak HTTP start without it and its like, which would cost each of them seconds.

    Importing an app starts nothing.
    """
    pytest.importorskip("mosec")
    pytest.importorskip("litserve")
    program = """
import distilbert_mosec, catdog_litserve
assert len(distilbert_mosec.Preprocess().forward('hello')) == 3
catdog_litserve.CatDog(catdog_litserve.parse_options([]))
print(sorted({'torch', 'transformers', 'numpy', 'PIL'} & set(sys.modules)))
"""
    assert printed(program) == ["[]"]
    program = f"""
import byte_tokenizer, serving, word_lists
byte_tokenizer.load_tokenizer().encode('x')
print(sorted({{'torch', 'transformers', 'tokenizers'}} & set(sys.modules)))
if {find_spec("pytriton") is not None}:
    import distilbert_pytriton
print(sorted({{'torch', 'transformers'}} & set(sys.modules)))
"""
    assert printed(program) == ["[]", "[]"]


def test_a_seed_gives_the_same_weights_in_every_process(digest: Callable[[Any], str]) -> None:
    """To the bit, whatever was drawn before; another seed has others, and torch's own state stays as it was."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from suites.catdog.apps import catdog_model, catdog_settings
    from suites.codegen.apps import gptj
    from suites.distilbert.apps import distilbert_model

    small = catdog_settings.SIZES["small"]
    before = torch.random.get_rng_state()
    here, other = (
        [
            digest(distilbert_model.build_model("small", seed)),
            digest(catdog_model.build_model(small.depths, small.widths, 2, seed)),
            digest(gptj.build_model("small", seed=seed)),
        ]
        for seed in (7, 8)
    )
    assert torch.equal(before, torch.random.get_rng_state())
    program = f"""
import hashlib, torch
import distilbert_model, catdog_model, gptj
torch.manual_seed(99)
torch.set_num_threads(1)
for model in (
    distilbert_model.build_model('small', 7),
    catdog_model.build_model({small.depths}, {small.widths}, 2, 7),
    gptj.build_model('small', seed=7),
):
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    print(digest.hexdigest())
"""
    assert printed(program) == here
    assert not set(here) & set(other)


@pytest.mark.parametrize(
    ("app", "argument", "message"),
    [
        ("distilbert_mosec", "--inference-worker=2", "unrecognized arguments"),
        ("distilbert_mosec", "--inference-workers=0", "less than 1"),
        ("distilbert_mosec", "--slowdown=nan", "not a number of 0 or more"),
        ("distilbert_mosec", "--size=huge", "invalid choice"),
        ("distilbert_mosec", "--checkpoint=/nonexistent", "no folder"),
        ("distilbert_pytriton", "--max-queue-delay=10", "unrecognized arguments"),
        ("distilbert_pytriton", "--max-queue-delay-us=-1", "less than 0"),
        ("distilbert_pytriton", "--max-queue-delay-us=10ms", "invalid whole_number value"),
        ("distilbert_pytriton", "--max-batch-size=0", "less than 1"),
        ("distilbert_pytriton", "--grad-mode=grad", "invalid choice"),
        ("catdog_litserve", "--max-batch=8", "unrecognized arguments"),
        ("catdog_litserve", "--max-batch-size=0", "less than 1"),
        ("catdog_litserve", "--batch-timeout=-0.1", "not a number of 0 or more"),
        ("catdog_litserve", "--slowdown=nan", "not a number of 0 or more"),
        ("catdog_litserve", "--weights=/nonexistent", "no file"),
        ("catdog_model_only", "--size=huge", "invalid choice"),
    ],
)
def test_wrong_arguments_end_an_app_before_it_serves(
    app: str, argument: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong or misspelt argument is named, with exit status 2; none is silently left out."""
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
