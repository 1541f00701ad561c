"""Arguments of the server fixtures as a user may type them: checked before anything is started."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from os import fspath
from pathlib import PurePath
from typing import TYPE_CHECKING

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.process.secrets import without_secret_values
from pytest_gpuserve.servers.metric_names import MetricNames

if TYPE_CHECKING:
    from pytest_gpuserve.servers.base import Argument


def seconds(name: str, value: object) -> float:
    """A duration.

    Raises:
        UsageProblem: It is no number above 0.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value > 0):
        raise UsageProblem(f"{name}=... is a number of seconds above 0, not {value!r}", remedies=[f"{name}=120"])
    return value


def words(what: str, given: object) -> tuple[str, ...]:
    """Several texts as a user gave them; one alone is a sequence too, of its letters.

    Args:
        what: What they are, for messages.
        given: The texts, or paths.

    Raises:
        UsageProblem: It is one text, or one of them is none.
    """
    if isinstance(given, str):
        listed = repr(without_secret_values(given.split()))
        raise UsageProblem(f"{what} takes a list of texts, not one text", remedies=[f"such as {listed}"])
    if isinstance(given, (bytes, Mapping)) or not isinstance(given, Iterable):
        raise UsageProblem(f"{what} takes a list of texts", found=f"a {type(given).__name__}")
    found = []
    for word in given:
        text = fspath(word) if isinstance(word, PurePath) else word
        if not isinstance(text, str) or "\0" in text:
            raise UsageProblem(f"{what} takes a list of texts", found=repr(word), remedies=[repr(str(word))])
        found.append(text)
    return tuple(found)


def variables(fixture: str, env: object) -> dict[str, str]:
    """Variables for a server as a user gave them.

    Raises:
        UsageProblem: One is no variable, or its value no text; the value is not shown, for it may be a secret.
    """
    if env is not None and not isinstance(env, Mapping):
        raise UsageProblem(f"{fixture}(env=...) takes a dict", remedies=['env={"NAME": "value"}'])
    found = {}
    for name, value in (env or {}).items():
        if not isinstance(value, str) or "\0" in value:
            raise UsageProblem(
                f"{fixture}(env=...): the value of {name!r} is no text",
                found=f"a {type(value).__name__}",
                remedies=[f'env={{{name!r}: "..."}}', "leave out a variable that is not to be set"],
            )
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise UsageProblem(f"{fixture}(env=...): no variable is called {name!r}")
        found[name] = value
    return found


def named_arguments(fixture: str, arguments: Mapping[str, object]) -> dict[str, Argument]:
    """Arguments by name as a user gave them; a path is text from here on, and moves to another checkout as text does.

    Raises:
        UsageProblem: One cannot stand on a command line.
    """
    found: dict[str, Argument] = {}
    for name, given in arguments.items():
        value = fspath(given) if isinstance(given, PurePath) else given
        if value is not None and not isinstance(value, (str, int, float)):
            raise UsageProblem(
                f"{fixture}({name}=...) is a text, a number, True, False or None",
                found=f"a {type(value).__name__}",
                remedies=[f'an option with more values: args=["--{name.replace("_", "-")}", "...", "..."]'],
            )
        found[name] = value
    return found


def metric_names(fixture: str, counters: object) -> MetricNames | None:
    """The names of metrics as a user gave them.

    Raises:
        UsageProblem: They are something else.
    """
    if counters is None or isinstance(counters, MetricNames):
        return counters
    raise UsageProblem(
        f"{fixture}(counters=...) takes MetricNames",
        found=repr(counters),
        remedies=[
            "from pytest_gpuserve.servers.metric_names import MetricNames",
            'counters=MetricNames(items="...", batches="...")',
        ],
    )
