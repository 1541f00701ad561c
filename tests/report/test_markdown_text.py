"""What a run says is shown in a comment as text, and does nothing: by the renderers that read it."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from pytest_gpuserve.report.markdown import Inert, comment, step_summary
from pytest_gpuserve.report.names import printable
from tests.support.markdown_results import HOSTILE, TEXTS, UNHURRIED, Tree, gfm, github, hostile_result, only_text

if TYPE_CHECKING:
    from collections.abc import Callable

RENDERERS = pytest.mark.parametrize("render", [gfm, github])


@RENDERERS
@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_shown_and_nothing_else(render: Callable[[str], str], text: str) -> None:
    """Whatever a test, a log or a setting is called: our tags, our words, and the text itself in code."""
    for write in (comment, step_summary):
        tree = only_text(render(write(hostile_result(text))))
        wanted = Tree(Inert(str).block(text)).verbatim[0]
        assert any(wanted == shown for shown in tree.verbatim)


@RENDERERS
@UNHURRIED
@given(text=TEXTS)
def test_no_text_gets_out_of_its_place(render: Callable[[str], str], text: str) -> None:
    """The same of texts that nobody has thought of."""
    only_text(render(comment(hostile_result(text))))


@UNHURRIED
@given(text=TEXTS)
def test_each_line_is_one_of_html(text: str) -> None:
    """No blank line ends the block, and no line is a command to the runner that might print the file."""
    first, *lines = comment(hostile_result(text)).removesuffix("\n").split("\n")
    assert re.fullmatch(r"<!-- pytest-gpuserve [A-Za-z0-9.-]{1,64} stored -->", first)
    assert all(line.startswith("<") for line in lines)
    assert all(re.search(r"[\r\x0b\x0c\x1c-\x1f\x85\u2028\u2029]", line) is None for line in lines)


def test_secrets_are_hidden_before_anything_else() -> None:
    """Also one that is coloured in the middle, or that holds what is escaped."""
    for secret in ("hunter22", "<a&b>|c", "line1\nline2"):
        result = hostile_result(f"key={secret}!")
        for write in (comment, step_summary):
            text = write(result, lambda text, secret=secret: text.replace(secret, "KEY"))  # type: ignore[misc]
            assert html.escape(secret) not in text
            assert printable(html.escape(secret, quote=False)) not in text
            assert "key=KEY!" in text
    coloured = Inert(lambda text: text.replace("hunter22", "KEY")).block("hunt\x1b[1mer22")
    assert coloured == "<pre>KEY</pre>"
