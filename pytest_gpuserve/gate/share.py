"""Whether a share of requests lies above a limit.

By the exact limits of the binomial distribution (C. J. Clopper and E. S. Pearson, Biometrika 26, 1934).
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuserve.gate.student import f_upper_tail


@dataclass(frozen=True, slots=True)
class Share:
    """A share of requests, from 0 to 1, and of how many independent ones it is worth; not necessarily whole."""

    value: float
    effective: float

    def chance_of_so_many(self, limit: float) -> float:
        """Probability of so large a share, or a larger one, if the true one is ``limit``; inside (0, 1)."""
        beyond = self.value * self.effective
        return 1.0 if beyond <= 0 else _beta(limit, beyond, self.effective - beyond + 1)


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), as a tail of F (Abramowitz and Stegun 26.6.2)."""
    return f_upper_tail(a / b * (1 - x) / x, 2 * b, 2 * a)
