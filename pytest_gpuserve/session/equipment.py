"""What a session loads with: what starts its servers, who looks at the card meanwhile, and where engines come from."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.device.card import UNSUPPORTED
from pytest_gpuserve.device.telemetry import Sampling
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.process.module import module_command
from pytest_gpuserve.process.secrets import secret_headers
from pytest_gpuserve.servers.instance import Instance, started
from pytest_gpuserve.servers.remote import Remote, reached
from pytest_gpuserve.trial.telemeter import NOBODY, Telemeter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pytest

    from pytest_gpuserve.device import Device
    from pytest_gpuserve.load.ray.source import RayEngine
    from pytest_gpuserve.load.source import EngineSource
    from pytest_gpuserve.servers.base import Ask, ServerKind
    from pytest_gpuserve.trial.handle import Starter

LOG_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")
"""What is not written into the name of a log."""


class Equipment:
    """Makes each part when it is first needed; all of them write logs.

    Args:
        device: What servers run on.
        engine: What makes the loads on Ray; None where processes of this host do. It is ended with the rest.
        logs: Finds the folder of the logs.
        logged: Hears of the log of each server that is started, and by name of what it is given that may be secret.
        note: Hears, once each, what a report should say of the card.
    """

    def __init__(
        self,
        device: Device,
        *,
        engine: RayEngine | None,
        logs: Callable[[pytest.TempPathFactory], Path],
        logged: Callable[[Path, Mapping[str, str]], None],
        note: Callable[[str], None],
    ) -> None:
        self._device = device
        self._engine = engine
        self._logs = logs
        self._logged = logged
        self._note = note
        self._telemeter = NOBODY
        self._starts = 0

    def starter(self, tmp_path_factory: pytest.TempPathFactory, start_timeout_seconds: float) -> Starter:
        """What starts servers on the device, each with a log file of its own."""

        def start(
            kind: ServerKind, ask: Ask, beside: Callable[[], None] | None = None
        ) -> AbstractContextManager[Instance]:
            self._starts += 1
            log = self._logs(tmp_path_factory) / f"{self._starts:03d}-{LOG_NAME.sub('-', kind.name)}.log"
            if isinstance(kind, Remote):
                return reached(kind, ask, timeout_seconds=start_timeout_seconds, beside=beside)
            return started(
                kind,
                ask,
                environment=self._device.environment(),
                log=log,
                start_timeout_seconds=start_timeout_seconds,
                launched=lambda given: self._logged(log, {**given, **secret_headers(ask.headers)}),
                beside=beside,
            )

        return start

    def telemeter(self, tmp_path_factory: pytest.TempPathFactory) -> Telemeter:
        """Who looks at the card while servers are loaded on it: from the first load to the session's end."""
        card = self._device.card
        if self._telemeter is NOBODY and card is not None:
            lacks_ecc = card.ecc is False or card.unknown.get("ecc") == UNSUPPORTED
            self._telemeter = Telemeter(
                [card.uuid],
                lambda: Sampling(
                    [card.uuid],
                    log=self._logs(tmp_path_factory) / "telemetry.log",
                    command=module_command("pytest_gpuserve.device.sampler"),
                ),
                self._note,
                without_ecc=[card.uuid] if lacks_ecc else [],
            )
        return self._telemeter

    def engine_source(self, tmp_path_factory: pytest.TempPathFactory) -> EngineSource:
        """Where the engines of all loads come from."""
        return LOCAL if self._engine is None else self._engine.source(self._logs(tmp_path_factory) / "ray.log")

    def close(self) -> None:
        """End the engines, and let nobody look at the card any more; may be called again."""
        with ExitStack() as stack:
            stack.callback(self._telemeter.close)
            if self._engine is not None:
                stack.callback(self._engine.close)
