"""Claims of a whole suite: the more is compared, the surer each REGRESSED has to be.

A test's outcome is due when the test ends, so a claim cannot wait for the claims after it as in Holm's step-down
(Scandinavian Journal of Statistics 6, 1979, 65-70). `Family` gives his thresholds in the order of time: with M planned
comparisons and r claims already upheld, the next one is upheld if its p-value is at most ``alpha / (M - r)``. Until the
first wrong claim all r upheld ones are right, so M - r counts at least the comparisons that can still be claimed
wrongly; with n of these, a wrong claim takes a p-value of at most ``alpha / n`` among n, whatever the order. So it
upholds all that Bonferroni does and nothing that Holm does not, and it upholds just what Holm does if claims that were
not upheld are asked again.

A claim that is not upheld yet is no PASS: it is measured on. A regression is upheld at a later look, chance goes away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_gpuserve.gate.sequential import ALPHA


@dataclass(frozen=True)
class Family:
    """The comparisons of one run that can claim a regression.

    Attributes:
        planned: How many there are, or may be; at least one. To be known before the first claim.
        upheld: How many claims were upheld so far.
        alpha: How likely any claim of the run may be wrong.

    Raises:
        ValueError: None is planned, more are upheld than planned, or alpha does not lie between 0 and 0.5.
    """

    planned: int
    upheld: int = 0
    alpha: float = ALPHA

    def __post_init__(self) -> None:
        if self.planned < 1:
            raise ValueError(f"a family has at least one comparison, not {self.planned}")
        if not 0 <= self.upheld <= self.planned:
            raise ValueError(f"of {self.planned} comparisons {self.upheld} cannot be upheld")
        _check_alpha(self.alpha)

    @property
    def threshold(self) -> float:
        """Largest adjusted p-value at which the next claim is upheld."""
        return self.alpha / max(1, self.planned - self.upheld)

    def upholds(self, adjusted_p: float) -> bool:
        """Whether a claim with this p-value, adjusted for its looks (`adjusted_p`), is upheld."""
        return adjusted_p <= self.threshold

    def with_claim(self) -> Family:
        """The family after one more upheld claim, which was planned or counts as if it had been."""
        return replace(self, planned=max(self.planned, self.upheld + 1), upheld=self.upheld + 1)

    def at_least(self, planned: int) -> Family:
        """The family when there turn out to be more comparisons; what was upheld before stays upheld."""
        return replace(self, planned=max(self.planned, planned))


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha must lie between 0 and 0.5, not {alpha}")
