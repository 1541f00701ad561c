"""Keeping the values of secret environment variables out of whatever is shown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SECRET_NAME: Final = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|(API|ACCESS|PRIVATE|AUTH|SIGNING|ENCRYPTION)_?KEY|AUTHORIZATION|COOKIE",
    re.IGNORECASE,
)
"""Variables of these names are taken for secrets."""

SHORTEST_SECRET: Final = 6
"""A shorter value is found in too many innocent words, and protects nothing."""


def without_secrets(text: str, environment: Mapping[str, str]) -> str:
    """Put the names of secret variables in the place of their values.

    Args:
        text: What is to be shown, such as the end of a server's log.
        environment: The variables that whoever wrote it could see.
    """
    secrets = {
        value: name for name, value in environment.items() if len(value) >= SHORTEST_SECRET and SECRET_NAME.search(name)
    }
    # The longest first, for one may be a part of another.
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, f"<{secrets[value]}>")
    return text
