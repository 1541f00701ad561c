"""Facts about collected tests: their markers, whose mistakes are all found here, and which of them measure."""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Final

import pytest

from pytest_gpuserve.plugin.options import read_settings
from pytest_gpuserve.verdict.metric import METRICS, Metric, metric_by_option

if TYPE_CHECKING:
    from collections.abc import Sequence

COLLECTED: Final = pytest.StashKey[set[str]]()
"""Ids of all collected tests, before any selection."""

LEFT_OUT: Final = pytest.StashKey[tuple[pytest.Item, ...]]()
"""Tests of published sizes, which pytest-gpuserve deselected itself."""

MEASURING: Final = "_gpuserve_measuring"
"""Base fixture of all measuring fixtures. pytest lists it among a test's fixtures only if the test's ``load`` is ours,
not a fixture of that name in the project."""

NEEDS_DEVICE: Final = "_gpuserve_session"
"""Base fixture of the fixtures that need the device's name."""


def measures(item: pytest.Item) -> bool:
    """Whether a test measures, so that it needs the device for itself."""
    return MEASURING in getattr(item, "fixturenames", ())


def needs_device(item: pytest.Item) -> bool:
    """Whether a test needs the device's name."""
    return NEEDS_DEVICE in getattr(item, "fixturenames", ())


def all_was_run(session: pytest.Session) -> bool:
    """Whether an unrequested entry is really unused: the run had no selection, failure or early end.

    Left out published sizes are not a selection by the user; see `all_tests`.
    """
    kept = {item.nodeid for item in all_tests(session)}
    selected = session.config.stash.get(COLLECTED, set()) - kept or any("::" in t for t in session.config.args)
    return not selected and not session.testsfailed and not session.shouldstop


def all_tests(session: pytest.Session) -> Sequence[pytest.Item]:
    """Tests of a run and the published sizes that were left out, whose entries ``--gpuserve-full`` uses."""
    return (*session.items, *session.config.stash.get(LEFT_OUT, ()))


MARKER: Final = "gpuserve"

FULL_MARKER: Final = "gpuserve_full"

FULL_HELP: Final = f"{FULL_MARKER}: the test runs only with --gpuserve-full"

ONE_AT_A_TIME: Final = "one_at_a_time"

LAPS: Final = "laps"

SWITCHES: Final = (ONE_AT_A_TIME, LAPS)
"""Arguments of a marker that are not metrics, but True or False."""

DEVICE: Final = "gpu"
"""Argument of a marker for one device only."""

ARGUMENTS: Final = (*(metric.option for metric in METRICS.values()), *SWITCHES, DEVICE)

MARKER_HELP: Final = (
    "gpuserve(throughput=0.05, p99=0.2, ..., one_at_a_time=True): how much worse each metric may get, as a fraction:"
    " a lower throughput, a higher latency."
    f" Metrics: {', '.join(metric.option for metric in METRICS.values())}. {ONE_AT_A_TIME}=True: the servers of a"
    " comparison alternate, because they do not fit into memory together, or each needs the GPU for itself."
    f" {LAPS}=False: the test's function is not repeated for the next start of its servers."
    f" {DEVICE}='cpu': the marker applies only to this device. There it overrides a marker without"
    f" {DEVICE}= on the same function, class or module"
)


def check_markers(item: pytest.Item) -> None:
    """Find the mistakes in a test's markers, including those for other devices.

    Raises:
        pytest.UsageError: A marker names an unknown metric, has a positional argument, or an invalid value.
    """
    tolerances(item, None)


def tolerances(item: pytest.Item, gpu: str | None) -> dict[str, float]:
    """Tolerances that the markers of a test set, by metric name; the closest marker wins.

    Args:
        gpu: The device by its name in baselines; None for all of them.

    Raises:
        pytest.UsageError: A marker names an unknown metric, has a positional argument, or an invalid value.
    """
    found: dict[str, float] = {}
    for where, option, value in _marked(item, gpu):
        if option not in SWITCHES:
            metric = metric_by_option(option)
            found.setdefault(metric.name, _tolerance(f"{where}({option}=...)", metric, value))
    return found


def one_at_a_time(item: pytest.Item, gpu: str | None) -> bool:
    """Whether a test's servers may not run at the same time; the closest marker wins."""
    return next((bool(value) for _, option, value in _marked(item, gpu) if option == ONE_AT_A_TIME), False)


def runs_in_laps(item: pytest.Item) -> bool:
    """Whether the function of a test may be repeated for each start of its servers; the closest marker wins."""
    return next((bool(value) for _, option, value in _marked(item, None) if option == LAPS), True)


def _marked(item: pytest.Item, gpu: str | None) -> list[tuple[str, str, object]]:
    """Place, name and value of each argument of a test's markers, the closest marker's first."""
    found: list[tuple[str, str, object]] = []
    for where, device, arguments in _in_order(item):
        unknown = sorted(set(arguments).difference(ARGUMENTS))
        if unknown:
            near = difflib.get_close_matches(unknown[0], ARGUMENTS, n=1)
            meant = f"\n  help: did you mean {near[0]}?" if near else ""
            raise pytest.UsageError(
                f"{where} does not know {', '.join(unknown)}; it knows {', '.join(ARGUMENTS)}{meant}"
            )
        for switch in SWITCHES:
            value = arguments.get(switch, False)
            if not isinstance(value, bool):
                raise pytest.UsageError(f"{where}({switch}=...) must be True or False, not {value!r}")
        if gpu is None or device in {None, gpu}:
            found.extend((where, option, value) for option, value in arguments.items())
    return found


def _in_order(item: pytest.Item) -> list[tuple[str, str | None, dict[str, object]]]:
    """Place, device and settings of each marker, the closest first."""
    found: list[tuple[int, bool, str, str | None, dict[str, object]]] = []
    places: dict[object, int] = {}
    for node, marker in item.iter_markers_with_node(MARKER):
        where = f"{item.nodeid}: @pytest.mark.{MARKER}"
        if marker.args:
            raise pytest.UsageError(f"{where} takes only names such as throughput=0.05, not {marker.args[0]!r}")
        arguments = dict(marker.kwargs)
        device = arguments.pop(DEVICE, None)
        if device is not None and not _names_a_device(device):
            raise pytest.UsageError(
                f"{where}({DEVICE}=...) must be the name of a device as under baselines/, such as 'cpu' or 'T4',"
                f" not {device!r}"
            )
        found.append((places.setdefault(node, len(places)), device is None, where, device, arguments))
    return [(where, device, arguments) for _, _, where, device, arguments in sorted(found, key=lambda each: each[:2])]


def _names_a_device(value: object) -> bool:
    from pytest_gpuserve.device.gpu import CPU, device_name  # noqa: PLC0415 -- who names none loads none

    return isinstance(value, str) and (value == CPU or value == device_name(value))


def _tolerance(where: str, metric: Metric, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or not 0 < value <= 1:
        raise pytest.UsageError(f"{where}: a tolerance is a fraction above 0 and up to 1, such as 0.05, not {value!r}")
    try:
        metric.check_tolerance(value)
    except ValueError as problem:
        raise pytest.UsageError(f"{where}: {problem}") from None
    return float(value)


class PublishedSizes:
    """Deselects tests that are marked `FULL_MARKER`, unless ``--gpuserve-full`` is given.

    Among hooks with ``trylast`` the last registered one runs last. So this plugin has to be registered before those
    that remember or distribute the tests.
    """

    def __init__(self) -> None:
        self._line = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave the tests out of the selection of ``-k`` and ``-m``."""
        marked = [item for item in items if item.get_closest_marker(FULL_MARKER) is not None]
        if not marked or read_settings(config).full:
            return
        config.hook.pytest_deselected(items=marked)
        config.stash[LEFT_OUT] = tuple(marked)
        kept = [item for item in items if item.get_closest_marker(FULL_MARKER) is None]
        items[:] = kept
        # A user who named a test, or gets none at all, has to learn why, even with -q.
        if config.get_verbosity() >= 0 or not kept or any("::" in argument for argument in config.args):
            self._line = _line(len(marked))

    def pytest_report_collectionfinish(self) -> list[str]:
        """Say how many tests were left out, besides pytest's own count."""
        return [self._line] if self._line else []


def _line(number: int) -> str:
    tests, them = ("1 test", "it") if number == 1 else (f"{number} tests", "them")
    return f"gpuserve: {tests} marked {FULL_MARKER} left out: --gpuserve-full runs {them}"
