"""The begin of what a server answered, made fit to be shown in an error."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.process.secrets import SECRET_NAME, SHORTEST_SECRET, without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

SHOWN_CHARACTERS: Final = 200

_LOOKED_AT_CHARACTERS: Final = 1 << 16
_LOOKED_AT_BYTES: Final = 4 * (_LOOKED_AT_CHARACTERS + 1)  # a character of UTF-8 has four at most
_LONGEST_SECRET: Final = 1 << 13  # a private key in one line has some 3000 characters

_WORD_AT_END: Final = re.compile(r"[\w+/=.~%-]+\Z")
"""What a cut may have gone through. It is left out: whoever knows more secrets would not know the half of one."""

_LONG_WORD: Final = re.compile(r"""(?:b?['"])?([\w+/=.~%-]{256,})""")
"""What a text of numbers, hex digits or base64 begins with, also as Python writes it; most secrets are shorter."""

_SHOWN_PART: Final = 8
"""Of a long word one in so many characters is shown: the rest of a token that is as long cannot be guessed."""

_TELLING_CHARACTERS: Final = 4
"""So much of a known secret's begin is enough to take what it stands in for a part of one."""


def excerpt(text: str, environment: Mapping[str, str], *, most: int = SHOWN_CHARACTERS) -> str:
    """The begin of a text, without secrets, and without the half of one that its end would leave.

    A word that the end would cut is left out: it may be a secret that only others know. The one exception is a word of
    256 characters or more that a text begins with, of which an eighth is shown: there would be nothing else to see, and
    were it a token, that would open nothing. Where the first four characters of a known secret are in that, it is left
    out too.

    Args:
        text: What somebody answered, of any size.
        environment: Variables and headers whose values it may repeat, as for `without_secrets`.
        most: Characters that are shown; a mark stands for the rest.
    """
    begin = text[:_LOOKED_AT_CHARACTERS]
    shown = without_secrets(begin, environment)
    if len(begin) < len(text):
        # It may end within a secret.
        shown = shown[:-_LONGEST_SECRET]
    elif len(shown) <= most:
        return shown
    word = _LONG_WORD.match(shown)
    if word is not None and word.end() >= most:
        part = shown[: min(most, word.start(1) + len(word[1]) // _SHOWN_PART)]
        if not _has_begin_of_secret(part, environment):
            return part + "…"
    return _WORD_AT_END.sub("", shown[:most]) + "…"


def begin_of(answer: bytes | bytearray) -> bytes:
    """As many bytes of an answer as `excerpt` looks at, and more, so that it knows of the rest.

    To be taken before the answer is made text: that takes long of a large one.
    """
    return bytes(answer[:_LOOKED_AT_BYTES])


def _has_begin_of_secret(text: str, environment: Mapping[str, str]) -> bool:
    return any(
        value[:_TELLING_CHARACTERS] in text
        for name, value in environment.items()
        if len(value) >= SHORTEST_SECRET and SECRET_NAME.search(name)
    )
