"""Synthetic hours of the right shape: each series has a level of its own, days, weekends and noise.

The real data sets (UCI electricity load diagrams, PEMS-SF traffic) are not needed to measure a server, and this module
does not download files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .contract import DATASETS, ENCODER_LENGTH, EXAMPLE_LENGTH, INPUTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

DTYPES: dict[str, np.dtype[Any]] = {"INT64": np.dtype(np.int64), "FP32": np.dtype(np.float32)}
"""numpy's types by KServe's names."""

DAY = 24
YEAR = 365 * DAY

SPREAD = 0.4
"""Standard deviation of a series, as a share of its level."""

NOISE = 0.05
"""Standard deviation of what cannot be forecast, as a share of its level."""


@dataclass(frozen=True)
class Examples:
    """Examples, standardised for each series as the network's inputs.

    Args:
        inputs: An array of (examples, *shape) for each of `INPUTS`.
        level: Level of each example's series, in the target's own unit.
        scale: Value of a standardised 1 in that unit, for each example.
    """

    inputs: Mapping[str, NDArray[np.generic]]
    level: NDArray[np.float64]
    scale: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.level)

    @property
    def truth(self) -> NDArray[np.float64]:
        """Values after the past, (examples, horizon), in the target's own unit."""
        target = self.inputs["target__6"][:, ENCODER_LENGTH:, 0].astype(np.float64)
        return self.unscaled(target)

    def unscaled(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Turn standardised values, (examples, ...), into the target's own unit."""
        more = (1,) * (values.ndim - 1)
        return np.asarray(values * self.scale.reshape(-1, *more) + self.level.reshape(-1, *more), dtype=np.float64)

    def batch(self, size: int) -> dict[str, NDArray[np.generic]]:
        """Return the first ``size`` examples; repeat them if they are fewer.

        Raises:
            ValueError: The size is below 1.
        """
        if size < 1:
            raise ValueError(f"a batch has one example at least, not {size}")
        rows = np.arange(size) % len(self)
        return {name: np.ascontiguousarray(values[rows]) for name, values in self.inputs.items()}


def synthetic(dataset: str, examples: int, *, seed: int = 0) -> Examples:
    """Make examples of random series at random hours of a year; equal arguments give equal examples.

    Args:
        dataset: A key of `DATASETS`.
        examples: Number of examples.
        seed: Seed of the random numbers.

    Raises:
        ValueError: The data set does not exist, or the number is below 1.
    """
    if dataset not in DATASETS:
        raise ValueError(f"no data set {dataset!r}; known: {', '.join(DATASETS)}")
    if examples < 1:
        raise ValueError(f"the number of examples must be at least 1, not {examples}")
    series = DATASETS[dataset].series
    random = np.random.default_rng(seed)
    levels = np.exp(random.normal(3.0, 1.0, series))
    peaks = random.uniform(0, DAY, series)
    which = random.integers(series, size=examples)
    hours = random.integers(YEAR, size=examples)[:, None] + np.arange(EXAMPLE_LENGTH)
    weekend = (hours // DAY) % 7 >= 5
    course = 0.5 * np.cos(2 * np.pi * (hours - peaks[which, None]) / DAY) - 0.2 * weekend
    course = (course + random.normal(0.0, NOISE, hours.shape)) / SPREAD
    known = np.stack(
        [
            _standardised(hours % DAY, DAY),
            _standardised((hours // DAY) % 7, 7),
            _standardised(hours, YEAR + EXAMPLE_LENGTH),
        ],
        axis=-1,
    )
    constant = np.broadcast_to(which[:, None, None], (examples, EXAMPLE_LENGTH, 1))
    values = {"s_cat__0": constant, "k_cont__3": known, "target__6": course[..., None], "id__7": constant}
    absent = np.ones((examples, 1))
    inputs = {spec.name: np.array(values.get(spec.name, absent), dtype=DTYPES[spec.datatype]) for spec in INPUTS}
    return Examples(inputs, levels[which], SPREAD * levels[which])


def random_examples(dataset: str, examples: int, *, seed: int = 0) -> Examples:
    """Make examples of noise, for a load on a server without forecasts.

    Categories are within their cardinality. Those of perf_analyzer's random mode are not, so that no table has a row
    for them.

    Raises:
        ValueError: As for `synthetic`.
    """
    found = synthetic(dataset, examples, seed=seed)
    random = np.random.default_rng(seed)
    noise = {
        spec.name: random.standard_normal((examples, *spec.shape)).astype(np.float32)
        for spec in INPUTS
        if spec.present and spec.datatype == "FP32"
    }
    return Examples({**found.inputs, **noise}, found.level, found.scale)


def _standardised(values: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Standardise values that are spread evenly over 0 .. count - 1: mean 0, standard deviation 1."""
    return np.asarray((values - (count - 1) / 2) / np.sqrt((count**2 - 1) / 12), dtype=np.float64)
