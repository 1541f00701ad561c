"""The begin of a foreign text shows no secret, nor the half of one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.process.excerpt import SHOWN_CHARACTERS, excerpt
from pytest_gpuserve.process.secrets import without_secrets

SECRET = "hf_abcdefghijkl"
KNOWN = {"HF_TOKEN": SECRET}

PHRASE = "correct horse battery staple " * 100
"""A secret of many words."""


@pytest.mark.parametrize("length", [0, 1, SHOWN_CHARACTERS])
def test_a_short_text_is_shown_whole(length: int) -> None:
    """Nothing stands for a rest where there is none."""
    assert excerpt("x" * length, {}) == "x" * length


def test_a_long_text_is_cut_at_a_word_and_says_so() -> None:
    """The word that would be cut in two is left out."""
    assert excerpt("one two three", {}, most=9) == "one two …"
    assert excerpt("one,two", {}, most=5) == "one,…"
    assert excerpt("x" * 300, {}) == "…"


@pytest.mark.parametrize("before", range(SHOWN_CHARACTERS - len(SECRET) - 12, SHOWN_CHARACTERS + 1))
def test_a_secret_across_the_end_is_none_of_it(before: int) -> None:
    """It is known before anything is cut, wherever it stands; what is left of its name is harmless."""
    shown = excerpt(f"{'x ' * (before // 2)}{SECRET} and more", KNOWN)
    assert "hf_" not in shown
    assert len(shown) <= SHOWN_CHARACTERS + 1


@pytest.mark.parametrize("before", range(SHOWN_CHARACTERS - len(SECRET) - 12, SHOWN_CHARACTERS + 1))
def test_a_secret_that_only_others_know_stays_whole_for_them(before: int) -> None:
    """Who has more of the variables masks it afterwards, and half of it could not be found then."""
    shown = excerpt(f"{'x ' * (before // 2)}{SECRET}{' x' * 10}", {})
    assert SECRET in shown or "hf_" not in shown
    assert "hf_" not in without_secrets(shown, KNOWN)


@settings(deadline=None)
@given(
    words=st.lists(st.text(max_size=30), max_size=40),
    secret=st.text(st.characters(codec="utf-8", exclude_characters="<>…"), min_size=6, max_size=40),
    place=st.integers(0, 40),
    most=st.integers(1, 400),
)
def test_no_text_leaks_a_secret(words: list[str], secret: str, place: int, most: int) -> None:
    """Whatever is around it and wherever it ends, nor as the ``repr`` of what it stands in."""
    text = "".join([*words[:place], secret, *words[place:]])
    for said in (text, repr(text.encode())):
        shown = excerpt(said, {"A_TOKEN": secret}, most=most)
        assert secret not in shown.replace("<A_TOKEN>", "<>")
        assert len(shown) <= most + 1


def test_a_secret_across_the_end_of_what_is_looked_at_is_none_of_it() -> None:
    """Of a huge text only the begin is looked at, which may end within a secret, close behind short names of others."""
    assert excerpt(PHRASE * 100, {"_PWD": PHRASE}) == "…"
