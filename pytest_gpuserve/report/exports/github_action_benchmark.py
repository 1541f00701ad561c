"""The custom tools of github-action-benchmark: a list of numbers, all of them the better the bigger, or the smaller.

One of its files has one direction, and it warns by the ratio of a number to that of the run before. So there are two
documents, and no number is turned over to fit into the other one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.report.explain import REFERENCE_WORDS
from pytest_gpuserve.report.exports.values import ExportedLoad, Value, json_text, loads_of
from pytest_gpuserve.units import MiB, format_change, format_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.gate.verdict import Judgement
    from pytest_gpuserve.report.results import SessionResult

_UNITS: Final[Mapping[str, tuple[str, float]]] = {
    "1/s": ("requests/s", 1.0),
    "s": ("ms", 1e3),
    "J": ("J", 1.0),
    "B": ("MiB", 1 / MiB),
}
"""For each unit of ours that which is written, and how many of it are one of ours."""

_RATIOS: Final = {"batching_ratio": "items/batch", "gpu_utilisation": "share"}
"""The same of metrics without a unit."""

_NO_MARKDOWN: Final = str.maketrans({"`": "'", "|": "/"})
"""The action writes names as code into a table of a comment; these signs would end the one or the other."""


def bigger_is_better(result: SessionResult, shown: Callable[[str], str] = str) -> str:
    """Write the metrics of which more is better, for ``tool: customBiggerIsBetter``.

    Args:
        result: The result.
        shown: Makes each text in it fit to be shown.
    """
    return _document(result, shown, higher_is_better=True)


def smaller_is_better(result: SessionResult, shown: Callable[[str], str] = str) -> str:
    """Write the metrics of which less is better, for ``tool: customSmallerIsBetter``.

    Args:
        result: The result.
        shown: Makes each text in it fit to be shown.
    """
    return _document(result, shown, higher_is_better=False)


def unit_of(metric: Metric) -> tuple[str, float]:
    """The unit in which a metric is written, and how many of it are one of the metric's own."""
    return _UNITS.get(metric.unit) or (_RATIOS.get(metric.name, "ratio"), 1.0)


def _document(result: SessionResult, shown: Callable[[str], str], *, higher_is_better: bool) -> str:
    loads = loads_of(result, lambda text: shown(text).translate(_NO_MARKDOWN))
    return json_text(
        [
            _entry(load, metric, value)
            for load in loads
            for metric, value in load.tracked().items()
            if metric.higher_is_better is higher_is_better
        ]
    )


def _entry(load: ExportedLoad, metric: Metric, value: Value) -> dict[str, Any]:
    unit, factor = unit_of(metric)
    # One that was overruled would be read as what the gate says of this number.
    verdicts = [row.judgement for row in load.rows if row.judgement.metric == metric and not row.overruled]
    entry: dict[str, Any] = {"name": f"{load.name} {metric.name}", "unit": unit, "value": value.value * factor}
    if value.lowest is not None and value.highest is not None:
        bounds = (format_value(bound, metric.unit) for bound in (value.lowest, value.highest))
        entry["range"] = " .. ".join(bounds)
    if verdicts:
        entry["extra"] = "\n".join(map(_told, verdicts))
    return entry


def _told(judgement: Judgement) -> str:
    change = "" if judgement.change is None else f": {format_change(judgement.change)}"
    asserted = "" if judgement.asserted else ", not asserted"
    return f"{judgement.verdict} ({REFERENCE_WORDS[judgement.reference_kind]}{asserted}){change}"
