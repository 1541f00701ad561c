"""Masks the values of secret environment variables in shown texts."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

SECRET_NAME: Final = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|_PWD|CREDENTIAL|(API|ACCESS|PRIVATE|AUTH|SIGNING|ENCRYPTION)[_-]?KEY"
    r"|AUTHORIZATION|COOKIE",
    re.IGNORECASE,
)
"""Names of variables, headers and options whose values are secrets; a tokenizer is not one."""

SHORTEST_SECRET: Final = 6
"""Shortest secret; shorter values occur in too many innocent words, and protect nothing."""


def without_secrets(text: str, environment: Mapping[str, str]) -> str:
    """Replace the values of secret variables by their names.

    Args:
        environment: Variables that the text's author could see.
    """
    secrets = {
        written: name
        for name, value in environment.items()
        if SECRET_NAME.search(name)
        # A log is shown line by line, and its end may begin in the middle of a key.
        for part in (value, *value.splitlines())
        if len(part) >= SHORTEST_SECRET
        for written in _as_written(part)
    }
    # The longest first, because one may be a part of another.
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, f"<{secrets[value]}>")
    return text


def masked(text: str) -> str:
    """Mask the values of this process's secret variables in a text; call it before the text is laid out."""
    return without_secrets(text, os.environ)


def secret_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Secret headers of a request, for `without_secrets`; for ``Bearer TOKEN`` the token."""
    return {
        name: max(value.split(), key=len, default="") for name, value in headers.items() if SECRET_NAME.search(name)
    }


def without_secret_values(words: Iterable[str], shown: Callable[[str], str] = lambda _: "...") -> list[str]:
    """Mask the values of options with names like secrets in a command line.

    Plain numbers are shown: ``--max-tokens=100000`` is not a secret.
    """
    found = []
    is_value = False
    for word in words:
        option, equals, value = word.partition("=")
        is_secret = word.startswith("-") and SECRET_NAME.search(option) is not None
        if is_secret and equals and _is_secret_value(value):
            found.append(f"{option}={shown(value)}")
        else:
            found.append(shown(word) if is_value and not word.startswith("-") and _is_secret_value(word) else word)
        is_value = is_secret and not equals
    return found


def _is_secret_value(value: str) -> bool:
    return len(value) >= SHORTEST_SECRET and not value.isdecimal()


def _as_written(value: str) -> set[str]:
    """Spellings of a value in plain text, in JSON, and in the ``repr`` of a text or of bytes."""
    return {value, json.dumps(value)[1:-1], repr(value)[1:-1], repr(value.encode(errors="backslashreplace"))[2:-1]}
