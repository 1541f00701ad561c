"""The claims of a whole run of pytest: the more it compares, the surer each REGRESSED and each IMPROVED has to be.

Each direction is a family of its own, so that a run calls nothing REGRESSED by chance with more than its level, and
nothing IMPROVED.
"""

from __future__ import annotations

from copy import deepcopy

from pytest_gpuserve.gate.sequential import Family
from pytest_gpuserve.gate.verdict import Verdict


class HolmCorrection:
    """Counts the comparisons of a run and the claims among them; see ``gate/sequential.py``.

    Args:
        planned: Comparisons that the collected tests will make at most.
    """

    def __init__(self, planned: int) -> None:
        family = Family(max(1, planned))
        self._families = {verdict: family for verdict in Verdict if verdict.is_claim}
        self._asked: set[tuple[str, ...]] = set()
        self._upheld: set[tuple[Verdict, tuple[str, ...]]] = set()

    def count(self, comparison: tuple[str, ...]) -> None:
        """Reckon with a comparison that is about to be judged; that of a second load of a test was not planned.

        Args:
            comparison: Names it among all of this run.
        """
        self._asked.add(comparison)
        self._families = {verdict: family.at_least(len(self._asked)) for verdict, family in self._families.items()}

    def aside(self) -> HolmCorrection:
        """Make a copy that goes on by itself: what is counted and upheld there changes nothing here."""
        return deepcopy(self)

    @property
    def planned(self) -> int:
        """Comparisons that are reckoned with."""
        return next(iter(self._families.values())).planned

    def uphold(self, comparison: tuple[str, ...], adjusted_p: float, verdict: Verdict = Verdict.REGRESSED) -> bool:
        """Whether a claim is upheld; once upheld it stays so.

        Args:
            comparison: Names it among all of this run.
            adjusted_p: Its p-value, adjusted for the looks that were taken.
            verdict: What it claims.
        """
        self.count(comparison)
        if (verdict, comparison) in self._upheld:
            return True
        family = self._families[verdict]
        if not family.upholds(adjusted_p):
            return False
        self._families[verdict] = family.with_claim()
        self._upheld.add((verdict, comparison))
        return True
