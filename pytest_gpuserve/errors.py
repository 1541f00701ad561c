"""Errors that a user can act on: what was needed, what was found, where we looked, and what helps."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class GpuserveError(Exception):
    """Base of all errors that a user can fix; its text is shown without a traceback.

    Args:
        summary: The step that failed, in one sentence.
        found: The actual state.
        looked: The examined places, in order.
        remedies: Remedies, each with the exact flag, argument or command.
        log_tail: Last lines of the log of the failure.
    """

    def __init__(
        self,
        summary: str,
        *,
        found: str = "",
        looked: Sequence[str] = (),
        remedies: Sequence[str] = (),
        log_tail: str = "",
    ) -> None:
        super().__init__(summary)
        self.summary = summary
        self.found = found
        self.looked = tuple(looked)
        self.remedies = tuple(remedies)
        self.log_tail = log_tail

    def __str__(self) -> str:
        lines = [self.summary]
        if self.found:
            lines.append(f"  found: {_hanging(self.found)}")
        if self.looked:
            lines.append(f"  looked at: {', '.join(self.looked)}")
        lines.extend(f"  help: {_hanging(remedy)}" for remedy in self.remedies)
        if self.log_tail:
            lines.append("  last lines of its log:")
            lines.extend(f"    | {line}" for line in self.log_tail.splitlines())
        return "\n".join(lines)


def _hanging(text: str) -> str:
    """Indent the further lines of a text, so that they cannot be taken for another field of the error."""
    return text.replace("\n", "\n      ")


class UsageProblem(GpuserveError):
    """A wrong option, marker or argument; the session ends with pytest's exit code 4."""


class DeviceProblem(UsageProblem):
    """The requested device is absent, or cannot be used now."""


class ServerFailed(GpuserveError):
    """A model server did not start, did not become ready, or died."""


class ServerEnded(ServerFailed):
    """The process of a model server ended before the server was ready."""


class LoadFailed(GpuserveError):
    """The load engine itself failed; its measurements must not be used."""


class BaselineUnusable(GpuserveError):
    """A baseline file cannot be read or trusted; names the file and the field."""


class NotInRevision(GpuserveError):
    """The other revision has no such server, or the server would be the same there."""


def import_extra(module: str, what: str, extra: str = "triton") -> Any:  # noqa: ANN401 -- a module, whose names a checker cannot know
    """Import a module.

    Args:
        module: Name of the module.
        what: The feature that needs it, for the message.
        extra: The extra that installs it.

    Raises:
        UsageProblem: The module is missing, or does not work with other installed packages.
    """
    try:
        return importlib.import_module(module)
    except Exception as problem:
        # tritonclient raises RuntimeError for a missing grpcio, protobuf errors of its own for a wrong version.
        raise UsageProblem(
            f"{what} needs {module.partition('.')[0]}",
            found=f"{type(problem).__name__}: {problem}",
            remedies=[f"pip install 'pytest-gpuserve[{extra}]'"],
        ) from problem
