"""An app: a user's Python file that builds a server and runs it, with its arguments and interpreter."""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from os import fspath
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, TypeVar

import msgspec

from pytest_gpuserve.builds.interpreter import installed_versions
from pytest_gpuserve.device.host import DEFAULT_DISTRIBUTIONS
from pytest_gpuserve.errors import NotInRevision, ServerFailed, UsageProblem
from pytest_gpuserve.process.secrets import without_secret_values
from pytest_gpuserve.servers.base import Launch, TellsNothing, digests, inherited_environment
from pytest_gpuserve.units import digest

if TYPE_CHECKING:
    from collections.abc import Collection

    from typing_extensions import Self

    from pytest_gpuserve.builds.relocation import Relocation
    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.servers.base import Argument, Site

_Facts = TypeVar("_Facts", bound=msgspec.Struct)


def seconds(name: str, value: object) -> float:
    """Check a duration.

    Raises:
        UsageProblem: The value is not a number above 0.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value > 0):
        raise UsageProblem(f"{name}=... must be a number of seconds above 0, not {value!r}", remedies=[f"{name}=120"])
    return value


def words(what: str, given: object) -> tuple[str, ...]:
    """Check a user's list of texts; a single text would be a sequence of its letters.

    Args:
        what: Description of the texts, for messages.
        given: The texts, or paths.

    Raises:
        UsageProblem: The value is a single text, or an item is not a text.
    """
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        remedies = [f"such as {without_secret_values(given.split())!r}"] if isinstance(given, str) else []
        raise UsageProblem(f"{what} takes a list of texts", found=f"a {type(given).__name__}", remedies=remedies)
    found = []
    for word in given:
        text = fspath(word) if isinstance(word, PurePath) else word
        if not isinstance(text, str) or "\0" in text:
            raise UsageProblem(f"{what} takes a list of texts", found=repr(word), remedies=[repr(str(word))])
        found.append(text)
    return tuple(found)


def variables(fixture: str, env: object) -> dict[str, str]:
    """Check a user's variables for a server.

    Raises:
        UsageProblem: A name is not valid, or a value is not text; the value is not shown, because it may be a secret.
    """
    if env is not None and not isinstance(env, Mapping):
        raise UsageProblem(f"{fixture}(env=...) takes a dict", remedies=['env={"NAME": "value"}'])
    found = {}
    for name, value in (env or {}).items():
        if not isinstance(value, str) or "\0" in value:
            raise UsageProblem(
                f"{fixture}(env=...): the value of {name!r} is not text",
                found=f"a {type(value).__name__}",
                remedies=[f'env={{{name!r}: "..."}}', "leave out a variable that should not be set"],
            )
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise UsageProblem(f"{fixture}(env=...): {name!r} is not a valid name of a variable")
        found[name] = value
    return found


def named_arguments(fixture: str, arguments: Mapping[str, object]) -> dict[str, Argument]:
    """Check a user's named arguments; paths become text, and move to another checkout as text does.

    Raises:
        UsageProblem: A value cannot be written on a command line.
    """
    found: dict[str, Argument] = {}
    for name, given in arguments.items():
        value = fspath(given) if isinstance(given, PurePath) else given
        if value is not None and not isinstance(value, (str, int, float)):
            raise UsageProblem(
                f"{fixture}({name}=...) must be a text, a number, True, False or None",
                found=f"a {type(value).__name__}",
                remedies=[f'an option with more values: args=["--{name.replace("_", "-")}", "...", "..."]'],
            )
        found[name] = value
    return found


@dataclass(frozen=True)
class App:
    """A Python file that is run as a server.

    Args:
        fixture: The called fixture, for messages.
        file: The file, which exists.
        shown: Its name in a baseline: relative to the project, so that a checkout may move.
        arguments: Its command line arguments by name.
        extra: Further command line arguments, unchanged.
        environment: Variables for the server on top of the inherited ones.
        python: The interpreter with the server's library, which runs it.
        distributions: Distributions whose versions are reported for an interpreter that is not the tests' own.
    """

    fixture: str
    file: Path
    shown: str
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    distributions: tuple[str, ...] = DEFAULT_DISTRIBUTIONS

    def refuse(self, names: Collection[str]) -> None:
        """Refuse arguments that the fixture sets itself.

        Raises:
            UsageProblem: The fixture sets one of the arguments.
        """
        flags = (word.lstrip("-").partition("=")[0] for word in self.extra if word.startswith("-"))
        given = {*self.arguments, *(flag.replace("-", "_") for flag in flags)}
        ours = sorted(given.intersection(names))
        if ours:
            raise UsageProblem(
                f"{self.fixture} sets {', '.join(ours)} itself", remedies=[f"leave out {'=..., '.join(ours)}=..."]
            )

    def flags(self) -> list[str]:
        """Its arguments on the command line, those by name in alphabetical order."""
        flags = []
        for name in sorted(self.arguments):
            value = self.arguments[name]
            flag = f"--{name.replace('_', '-')}"
            if value is True:
                flags.append(flag)
            elif value is not None and value is not False:
                flags.append(f"{flag}={value}")
        return [*flags, *self.extra]

    def launch(self, *words: str, environment: Mapping[str, str] | None = None) -> Launch:
        """Run these words with its interpreter and its own arguments, in the folder of its file.

        Args:
            words: Words between the interpreter and its own arguments, the file among them.
            environment: Variables; None for its own.
        """
        return Launch(
            argv=(self.python, *words, *self.flags()),
            environment=self.environment if environment is None else environment,
            cwd=self.file.parent,
        )

    def workload(self) -> dict[str, str]:
        """Facts that a baseline must have in common with it, as text; values of variables and secrets as hashes."""
        return {
            "app": self.shown,
            "arguments": " ".join(without_secret_values(self.flags(), digest)),
            "environment": digests(self.environment),
        }

    def information(self) -> dict[str, str]:
        """The hash of its file; for an interpreter that is not the tests' own, also its versions."""
        found = {"app_sha256": hashlib.sha256(self.file.read_bytes()).hexdigest()}
        if self.python != sys.executable:
            versions = installed_versions(self.python, self.distributions)
            found["interpreter"] = ", ".join(f"{name} {version}" for name, version in versions.items())
        return found

    def relocated(self, relocation: Relocation) -> App:
        """Find the same app in the other build; an interpreter of its own stays.

        Raises:
            NotInRevision: The other revision lacks the app, or the app would be the same there.
            ServerFailed: The import paths of an interpreter are unknown.
        """
        folder = self.file.parent
        moved = replace(
            self,
            file=relocation.source(self.file),
            arguments={
                name: relocation.argument(value, folder) if isinstance(value, str) else value
                for name, value in self.arguments.items()
            },
            extra=tuple(relocation.argument(word, folder) for word in self.extra),
            python=relocation.interpreter(self.python),
        )
        environment = relocation.environment(
            self.environment, inherited=inherited_environment(os.environ), python=self.python, cwd=folder
        )
        if replace(moved, environment=relocation.telling(environment, self.environment)) == self:
            raise NotInRevision(
                f"{self.fixture}({self.shown}) would be the same in the other build",
                found=f"its app is {self.file}, its interpreter {self.python}",
                remedies=[
                    "--against-python=EXE replaces only the interpreter that runs pytest: leave out python=...",
                    "--against=REV moves only files of the checkout: keep the app in it",
                ],
            )
        return replace(moved, environment=environment)


@dataclass(frozen=True)
class AppServer(TellsNothing):
    """Common part of server kinds that run an app: a subclass needs ``name`` and ``launch``.

    Args:
        app: The app.
    """

    app: App
    name: str = field(default="", init=False)
    ports: tuple[str, ...] = field(default=("http",), init=False)
    health: str = field(default="", init=False)
    default_model: str = field(default="", init=False)

    @property
    def python(self) -> str:
        """See ``ServerKind``."""
        return self.app.python

    def read_counters(self, site: Site) -> Counters | None:
        """See ``ServerKind``."""
        del site
        return None

    def workload(self) -> Mapping[str, str]:
        """See ``ServerKind``."""
        return {"server": self.name, **self.app.workload()}

    def information(self) -> Mapping[str, str]:
        """See ``ServerKind``."""
        return self.app.information()

    def relocated(self, relocation: Relocation) -> Self:
        """See ``ServerKind``; an interpreter of its own stays."""
        return replace(self, app=self.app.relocated(relocation))


def read_facts(place: Path, facts: type[_Facts], *, who: str, remedy: str) -> _Facts:
    """Read the facts that a server wrote at its start.

    Args:
        place: The JSON file.
        facts: Type of its contents.
        who: The process that should have written it, for the message.
        remedy: Remedy if it did not.

    Raises:
        ServerFailed: The file does not exist, or does not have these contents.
    """
    try:
        return msgspec.json.decode(place.read_bytes(), type=facts)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise ServerFailed(
            f"{who} did not report its setup", found=str(problem), looked=[str(place)], remedies=[remedy]
        ) from None
