"""How a server was to be set up, and how it really is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """One setting of a server, as text.

    Args:
        used: What the running server says that it uses; None where it does not tell.
        asked: What it was asked for; None where that was left to it.
    """

    used: str | None
    asked: str | None = None

    @property
    def differs(self) -> bool:
        """Whether the server is known to use something else than what was asked for."""
        return self.asked is not None and self.used is not None and self.asked != self.used


def moved(before: Mapping[str, ServerSetting], after: Mapping[str, ServerSetting]) -> list[str]:
    """Say in words what a server uses that it did not use before; what is not known on both sides has not moved."""
    return [
        f"setting {name}: {before[name].used} before, {setting.used} now"
        for name, setting in after.items()
        if name in before and None not in {before[name].used, setting.used} and before[name].used != setting.used
    ]


def differences(settings: Mapping[str, ServerSetting]) -> list[str]:
    """Say in words where a server uses something else than what was asked for, in the order of the settings."""
    return [
        f"{name}: asked for {setting.asked}, the server uses {setting.used}"
        for name, setting in settings.items()
        if setting.differs
    ]
