"""The begin of what a server answered, made fit to be shown in an error."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.process.secrets import without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

SHOWN_CHARACTERS: Final = 200

_LOOKED_AT_CHARACTERS: Final = 1 << 16
_LONGEST_SECRET: Final = 1 << 13  # a private key in one line has some 3000 characters

_WORD_AT_END: Final = re.compile(r"[\w+/=.~%-]+\Z")
"""What a cut may have gone through. It is left out: whoever knows more secrets would not know the half of one."""


def excerpt(text: str, environment: Mapping[str, str], *, most: int = SHOWN_CHARACTERS) -> str:
    """The begin of a text, without secrets, and without the half of one that its end would leave.

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
    return _WORD_AT_END.sub("", shown[:most]) + "…"
