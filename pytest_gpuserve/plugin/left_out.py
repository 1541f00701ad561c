"""The points of published sizes, which a CPU is spared: they are deselected, and a line says how to ask for them.

The device is looked for once more for it, before a session is opened: only so are the tests that pytest lists, deals
out and counts those of this run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpuserve.errors import DeviceProblem
from pytest_gpuserve.plugin.collection import LEFT_OUT
from pytest_gpuserve.plugin.markers import FULL_MARKER
from pytest_gpuserve.plugin.options import read_settings

if TYPE_CHECKING:
    from pytest_gpuserve.plugin.options import Settings

HANDED: Final = "gpuserve_left_out"
"""What a worker of pytest-xdist tells its controller, which collects nothing, among its ``workeroutput``."""


class PublishedSizes:
    """A plugin that deselects what is marked `FULL_MARKER` where it is not to be measured.

    Of hooks that want to be last the one that was registered last is: this has to be registered before whatever
    remembers or deals out the tests that there are.
    """

    def __init__(self) -> None:
        self._line = ""
        self._told = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave them out of what ``-k`` and ``-m`` have selected."""
        marked = [item for item in items if item.get_closest_marker(FULL_MARKER) is not None]
        if not marked or not _spares(read_settings(config)):
            return
        config.hook.pytest_deselected(items=marked)
        config.stash[LEFT_OUT] = tuple(marked)
        kept = [item for item in items if item.get_closest_marker(FULL_MARKER) is None]
        items[:] = kept
        # Who asked for a test by its name, or gets none at all, has to hear why; with -q nobody else has to.
        if config.get_verbosity() >= 0 or not kept or any("::" in argument for argument in config.args):
            self._line = _line(len(marked))
            of_worker = getattr(config, "workeroutput", None)
            if of_worker is not None:
                of_worker[HANDED] = self._line

    def pytest_report_collectionfinish(self) -> list[str]:
        """Say how many there are, beside pytest's own count."""
        self._told = bool(self._line)
        return [self._line] if self._line else []

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:  # noqa: ANN401 -- pytest-xdist need not be installed
        """Take the line of a worker: each has collected all tests."""
        # A worker that crashed has none.
        self._line = (getattr(node, "workeroutput", None) or {}).get(HANDED, self._line)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what workers have left out, which nobody has been told yet."""
        if self._line and not self._told:
            terminalreporter.write_line(self._line)


def _spares(settings: Settings) -> bool:
    """Whether the device is to be spared: it is the CPU, of which nobody has asked for them."""
    if settings.full:
        return False
    if settings.gpu != "auto":
        return settings.gpu == "cpu"
    from pytest_gpuserve.plugin.devices import find_devices  # noqa: PLC0415 -- who marks nothing looks for no device

    try:
        return not find_devices(settings)[0].is_gpu
    except DeviceProblem:
        # It is told where a test needs the device; to list tests takes none.
        return False


def _line(number: int) -> str:
    tests, them = ("1 test", "it") if number == 1 else (f"{number} tests", "them")
    return f"gpuserve: {tests} of the published sizes left out on cpu: --gpuserve-full measures {them}"
