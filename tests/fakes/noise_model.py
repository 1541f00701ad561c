"""A seeded model of a machine's noise in measurements of one build, on the scale of log cost.

Every server start has an offset. What is left of a window is drift, in which neighbours in time are alike (AR(1)), the
window's own noise, both with the heavy tails of Student's t with 4 degrees of freedom, and now and then a stall, of
exponential size. Servers that are measured by turns share the drift, not the starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

TAIL_DOF: Final = 4

TURNS: Final = 4
"""Windows of a block, ABBA or BAAB."""


@dataclass(frozen=True)
class Noise:
    """One kind of machine. Standard deviations are of log cost: .01 is 1 %.

    Attributes:
        name: For tests and tables.
        start_sd: Between server starts of one build.
        drift_sd: Standard deviation of the drift at any one window.
        drift_rho: Correlation of the drift of neighbouring windows.
        own_sd: Standard deviation of the noise that one window has alone.
        stall_share: Share of windows with a stall.
        stall_size: Mean size of a stall.
    """

    name: str
    start_sd: float
    drift_sd: float
    drift_rho: float
    own_sd: float
    stall_share: float
    stall_size: float

    @property
    def start_pair_variance(self) -> float:
        """Variance of the difference of two starts: what a prior is about."""
        return 2 * self.start_sd**2

    def with_start_sd(self, start_sd: float) -> Noise:
        """The same machine with another spread of starts."""
        return replace(self, start_sd=start_sd)

    def block_differences(self, random: np.random.Generator, comparisons: int, *, rounds: int, blocks: int) -> Numbers:
        """Block differences of log cost between two starts of one build, with a fair coin for ABBA or BAAB.

        Returns:
            Of shape (comparisons, rounds, blocks).
        """
        windows = self._windows(random, (comparisons, rounds), blocks * TURNS)
        windows = windows.reshape(comparisons, rounds, blocks, TURNS)
        inner_minus_outer = (windows[..., 1] + windows[..., 2] - windows[..., 0] - windows[..., 3]) / 2
        coins = random.choice((-1.0, 1.0), size=inner_minus_outer.shape)
        starts = random.normal(0.0, math.sqrt(self.start_pair_variance), (comparisons, rounds, 1))
        differences: Numbers = coins * inner_minus_outer + starts
        return differences

    def _windows(self, random: np.random.Generator, shape: tuple[int, int], count: int) -> Numbers:
        """Drift, own noise and stalls of ``count`` windows in a row."""
        innovations = self.drift_sd * _heavy_tailed(random, (count, *shape))
        drift = np.empty_like(innovations)
        drift[0] = innovations[0]
        fresh = math.sqrt(1 - self.drift_rho**2)
        for at in range(1, count):
            drift[at] = self.drift_rho * drift[at - 1] + fresh * innovations[at]
        own = self.own_sd * _heavy_tailed(random, (*shape, count))
        stalls = random.exponential(self.stall_size, (*shape, count)) * (
            random.random((*shape, count)) < self.stall_share
        )
        windows: Numbers = np.moveaxis(drift, 0, -1) + own + stalls
        return windows


def _heavy_tailed(random: np.random.Generator, shape: tuple[int, ...]) -> Numbers:
    """Student's t, scaled to a standard deviation of 1."""
    draws: Numbers = random.standard_t(TAIL_DOF, shape) / math.sqrt(TAIL_DOF / (TAIL_DOF - 2))
    return draws


QUIET: Final = Noise("quiet", 0.003, 0.01, 0.3, 0.005, 0.005, 0.10)
TYPICAL: Final = Noise("typical", 0.006, 0.02, 0.3, 0.01, 0.02, 0.15)
NOISY: Final = Noise("noisy", 0.01, 0.03, 0.8, 0.015, 0.04, 0.20)

NOISES: Final = (QUIET, TYPICAL, NOISY)
