"""LitServe (https://lightning.ai/docs/litserve): an app file that calls ``LitServer(...).run()``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime, added
from pytest_gpuserve.measure.window import COMPUTE, SERVER
from pytest_gpuserve.servers.app import AppServer, read_facts
from pytest_gpuserve.servers.base import with_own_package
from pytest_gpuserve.servers.inside.litserve_app import ANSWERS, EXECUTIONS, FACTS, LAUNCH, READY_PATH
from pytest_gpuserve.servers.inside.tally import SUFFIX, Counted, read_tally

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_gpuserve.servers.base import Argument, Launch, Site


@dataclass(frozen=True)
class LitServe(AppServer):
    """A LitServe app with its arguments.

    The fixture overrides the app's address and port. The server writes no client file. It logs a line for each request
    only if the app passes ``access_log=True`` to ``run``.
    """

    name: str = field(default="litserve", init=False)
    health: str = field(default=READY_PATH, init=False)

    def launch(self, site: Site) -> Launch:
        """See ``ServerKind``."""
        folder = _folder(site)
        folder.mkdir()
        places = (f"--host={site.host}", f"--port={site.port}", f"--folder={folder}")
        environment = with_own_package(site, self.app.environment)
        return self.app.launch(*LAUNCH, *places, str(self.app.file), environment=environment)

    def read_counters(self, site: Site) -> Counters | None:
        """See ``ServerKind``; None if an API has a loop of the user's own, whose batches are unknown.

        Items are requests of one input each. For an API with a spec a request may have several inputs. For continuous
        batching an item is a sequence in a step. Only successful executions are counted, without those of ``setup``. A
        restarted worker gets a new tally beside the old one.
        """
        apis = _facts(site).apis
        if not all(api.counted for api in apis.values()):
            return None
        tallies = _tallies(site)
        parts = {path: _counters_of(path, tallies) for path in sorted(apis)}
        whole = added(list(parts.values()))
        if whole is None or len(parts) == 1:
            return whole
        return replace(whole, parts=parts)

    def read_settings(self, site: Site) -> Mapping[str, ServerSetting]:
        """See ``ServerKind``; with several APIs, settings carry the API's path.

        The requested values are the app's arguments of the same names.
        """
        facts, asked = _facts(site), self.app.arguments
        used: dict[tuple[str, str], object] = {("litserve", ""): facts.version}
        used |= {(name, ""): value for name, value in facts.server.items()}
        workers = [about for about, _ in _tallies(site) if about.counts == EXECUTIONS]
        for path, api in sorted(facts.apis.items()):
            own = [about for about in workers if about.path == path]
            found = msgspec.structs.asdict(api)
            del found["counted"]
            for name in ("max_batch_size", "batch_timeout"):
                # A model may choose them once it knows its device.
                found[name] = _agreed([getattr(about, name) for about in own]) or found[name]
            used |= {(name, "" if len(facts.apis) == 1 else f" {path}"): value for name, value in found.items()}
        return {
            name + of_api: ServerSetting(_text(value), _requested(asked.get(name)))
            for (name, of_api), value in used.items()
        }


class _Api(msgspec.Struct):
    """Settings of one API, and whether its batches are counted."""

    max_batch_size: int
    batch_timeout: float
    workers: int
    stream: bool
    loop: str
    counted: bool
    spec: str | None = None


class _Facts(msgspec.Struct):
    """Facts that the app's process wrote at its call of ``run``; APIs by their paths."""

    version: str
    server: dict[str, Any]
    apis: dict[str, _Api]


class _About(msgspec.Struct):
    """Facts that a counting process wrote: its counters, their API path, and the worker's settings."""

    counts: str
    path: str
    max_batch_size: int = 1
    batch_timeout: float = 0.0


def _folder(site: Site) -> Path:
    return site.folder / "litserve"


def _facts(site: Site) -> _Facts:
    return read_facts(
        _folder(site) / FACTS,
        _Facts,
        who="the app's LitServer",
        remedy="call LitServer(...).run() in the process of the app itself",
    )


def _tallies(site: Site) -> list[tuple[_About, Path]]:
    """Tallies of all processes that have counted so far, including dead ones, each with its facts."""
    found = []
    for tally in sorted(_folder(site).glob(f"*{SUFFIX}")):
        try:
            found.append((msgspec.json.decode(tally.with_suffix(".json").read_bytes(), type=_About), tally))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
            raise ServerFailed("litserve's counts make no sense", found=f"{tally.name}: {problem!r}") from None
    return found


def _counters_of(path: str, tallies: Sequence[tuple[_About, Path]]) -> Counters:
    """Executions and answers of one API.

    Raises:
        ServerFailed: The API answers, but its workers do not count.
    """
    executions, answers = (
        [read_tally(tally) for about, tally in tallies if (about.path, about.counts) == (path, counts)]
        for counts in (EXECUTIONS, ANSWERS)
    )
    if not executions and any(reading.values["executions"] for reading in answers):
        raise ServerFailed(
            f"litserve answers {path}, but its workers do not count its batches",
            remedies=["leave litserve.LitServer's `callbacks` and the worker's processes as they are"],
        )
    never = StageTime(0.0, 0)
    found = [Counters(0, 0, stages={SERVER: never, COMPUTE: never}, requests=0)]
    for each in executions:
        values, stages = each.values, {COMPUTE: _time(each)}
        found.append(Counters(values["items"], values["executions"], each.batch_sizes, stages, requests=0))
    found += [Counters(0, 0, stages={SERVER: _time(each)}, requests=each.values["executions"]) for each in answers]
    return added(found) or found[0]


def _time(reading: Counted) -> StageTime:
    return StageTime(reading.values["nanoseconds"] / 1e9, reading.values["executions"])


def _agreed(values: list[object]) -> object:
    """Common value of all workers; different values joined; None without workers."""
    different = sorted(set(map(_text, values)))
    return ", ".join(different) if different else None


def _requested(value: Argument) -> str | None:
    return None if value is None else _text(value)


def _text(value: object) -> str:
    """A setting as text, the same for all spellings of a number."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    try:
        number = float(str(value))
    except ValueError:
        return str(value)
    return f"{number:.12g}" if math.isfinite(number) else str(value)
