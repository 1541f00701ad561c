"""The folders that a session makes: servers' logs, what tests make, and what is remembered from run to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from pytest_gpuserve.settings import Settings


class Folders:
    """Makes each folder when it is first asked for.

    Args:
        settings: What was asked.
        config: Of the session.
    """

    def __init__(self, settings: Settings, config: pytest.Config) -> None:
        self._settings = settings
        # Absent under `-p no:cacheprovider`.
        self._cache: pytest.Cache | None = getattr(config, "cache", None)
        self._logs: Path | None = None
        self._artifacts: Path | None = None

    def remembered(self) -> Path | None:
        """The folder of what outlasts the run; None without pytest's cache, for ``--cache-clear`` has to forget it."""
        return None if self._cache is None else self._cache.mkdir("gpuserve")

    def logs(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The folder for what servers write."""
        if self._logs is None:
            self._logs = tmp_path_factory.mktemp("gpuserve-logs")
        return self._logs

    def artifacts(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The folder for what tests make."""
        if self._artifacts is None:
            if self._settings.artifacts_dir is not None:
                self._artifacts = self._settings.artifacts_dir
                self._artifacts.mkdir(parents=True, exist_ok=True)
            elif self._cache is not None:
                self._artifacts = self._cache.mkdir("gpuserve-artifacts")
            else:
                self._artifacts = tmp_path_factory.mktemp("gpuserve-artifacts")
        return self._artifacts

    def places(self) -> list[str]:
        """Those with something in them for people, a line each."""
        places = []
        if self._logs is not None:
            places.append(f"server logs: {self._logs}")
        if self._artifacts is not None and self._artifacts.is_dir() and any(self._artifacts.iterdir()):
            places.append(f"tables and charts: {self._artifacts}")
        return places
