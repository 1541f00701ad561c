"""Reasons in tests: their texts, and some that are about nothing in particular."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Iterable


def said(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """The texts of reasons."""
    return tuple(map(str, reasons))


def because(*texts: str, kind: ReasonKind = ReasonKind.REMARK) -> tuple[Reason, ...]:
    """Reasons of one kind with these texts."""
    return tuple(Reason(kind, text) for text in texts)


def kinds(reasons: Iterable[Reason]) -> list[ReasonKind]:
    """Kinds of the reasons."""
    return [reason.kind for reason in reasons]
