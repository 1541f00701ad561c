"""Quality of forecasts: q-risk, as the paper defines it, and thresholds for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suites.tft.apps.tft.contract import QUANTILES

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

PUBLISHED_RISKS = {
    "electricity": {"p10": 0.028, "p50": 0.058, "p90": 0.029},
    "traffic": {"p10": 0.044, "p50": 0.109, "p90": 0.079},
}
"""Thresholds of the trained network on the real data: NVIDIA/DeepLearningExamples, TFT, AMP training on an A100."""


def q_risk(truth: Numbers, forecast: Numbers, quantile: float) -> float:
    """Compute the normalised quantile loss, ``2 x mean(QL) / mean|y|``, ``QL = max(q (y - f), (q - 1) (y - f))``.

    Lim, Arik, Loeff and Pfister, "Temporal Fusion Transformers", section "Loss functions", q-Risk.

    Args:
        truth: The later values, in its own unit, not standardised.
        forecast: Of the quantile, of the same shape and unit.
        quantile: In (0, 1).
    """
    import numpy as np  # noqa: PLC0415 -- tests of pure parts import this without it

    difference = truth - forecast
    loss = np.maximum(quantile * difference, (quantile - 1) * difference)
    return 2 * float(loss.mean()) / float(np.abs(truth).mean())


def risks(truth: Numbers, forecasts: Numbers) -> dict[str, float]:
    """Compute the q-risk of each quantile of the network: ``{"p10": ..., "p50": ..., "p90": ...}``.

    Args:
        truth: (examples, hours), in its own unit.
        forecasts: (examples, hours, quantiles), in the same unit.
    """
    return {
        f"p{round(100 * quantile)}": q_risk(truth, forecasts[..., place], quantile)
        for place, quantile in enumerate(QUANTILES)
    }


def check_risks(found: Mapping[str, float], thresholds: Mapping[str, float]) -> None:
    """See that no risk is above its threshold.

    Raises:
        AssertionError: One is, or was not computed; names all.
    """
    wrong = [
        f"{name} {found[name]:.4f} is above {most:.4f}" if name in found else f"{name} is missing"
        for name, most in thresholds.items()
        if not found.get(name, float("inf")) <= most
    ]
    if wrong:
        raise AssertionError(f"q-risk: {', '.join(wrong)}")
