"""Parts of a session by themselves: the environment of each start, and the release of all of them."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.telemetry import TelemetrySource
from pytest_gpuserve.plugin import opening
from pytest_gpuserve.plugin.opening import Equipment
from pytest_gpuserve.plugin.options import read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

NEVER: Any = None
"""In the place of what the test does not need."""


class Part:
    """Something that has to be given back, which tells its name then, and perhaps cannot be."""

    def __init__(self, name: str, ended: list[str], *, fails: bool = False) -> None:
        self.name, self.ended, self.fails = name, ended, fails

    def close(self) -> None:
        """Give it back."""
        self.ended.append(self.name)
        if self.fails:
            raise UsageProblem(f"{self.name} cannot be ended")

    release = close


def equipment(pytester: pytest.Pytester, **changes: Any) -> Equipment:  # noqa: ANN401 -- arguments of `Equipment`
    """Equipment of a session on ``cpu`` that does not measure, without pytest's cache."""
    config = pytester.parseconfig("--gpu=cpu")
    given = {"logged": NEVER, "note": pytest.fail, "make_room": NEVER, **changes}
    return Equipment(config, read_settings(config), measuring=False, **given)


def test_every_start_has_a_log_and_its_secrets_are_known(
    pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start gets a numbered log and its secrets are known; before it, other servers make room."""
    logged: list[tuple[str, Mapping[str, str]]] = []

    def started(*_: object, log: Path, launched: Any, **__: object) -> AbstractContextManager[None]:  # noqa: ANN401 -- a callback
        launched({"PORT": "8000"})
        return nullcontext()

    monkeypatch.setattr(opening, "started", started)
    made = equipment(
        pytester,
        logged=lambda log, given: logged.append((log.name, given)),
        make_room=lambda: logged.append(("", {})),
    )
    made.temporary = tmp_path_factory
    start = made.starter(1.0)
    ask: Any = SimpleNamespace(headers={"Authorization": "Bearer hunter22", "Accept": "*/*"})
    for name in ("mosec", "my server/2"):
        start(SimpleNamespace(name=name), ask, None)
    given = {"PORT": "8000", "Authorization": "hunter22"}
    assert logged == [("", {}), ("001-mosec.log", given), ("", {}), ("002-my-server-2.log", given)]


def test_all_is_given_back_the_device_last(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any failure all parts end, the device's lock last and the sampler also if the engines fail."""
    ended: list[str] = []
    monkeypatch.setattr(TelemetrySource, "close", Part("telemetry_source", ended).close)
    made = equipment(pytester)
    parts: Any = [Part(name, ended, fails=name != "lock") for name in ("lock", "opponents", "engine")]
    made.lock, made.reference_builds, made.engine = parts
    with pytest.raises(UsageProblem, match="opponents cannot be ended"):
        made.close()
    assert ended == ["engine", "telemetry_source", "opponents", "lock"]
