"""The claims of a whole run of pytest: the more it compares, the surer each REGRESSED has to be."""

from __future__ import annotations

from copy import deepcopy

from pytest_gpuserve.gate.family import Family


class Claims:
    """Counts the comparisons of a run and the claims among them; see ``gate/family.py``.

    Args:
        planned: Comparisons that the collected tests will make at most.
    """

    def __init__(self, planned: int) -> None:
        self._family = Family(max(1, planned))
        self._asked: set[tuple[str, ...]] = set()
        self._upheld: set[tuple[str, ...]] = set()

    def count(self, comparison: tuple[str, ...]) -> None:
        """Reckon with a comparison that is about to be judged; that of a second load of a test was not planned.

        Args:
            comparison: Names it among all of this run.
        """
        self._asked.add(comparison)
        self._family = self._family.at_least(len(self._asked))

    def aside(self) -> Claims:
        """Make a copy that goes on by itself: what is counted and upheld there changes nothing here."""
        return deepcopy(self)

    @property
    def planned(self) -> int:
        """Comparisons that are reckoned with."""
        return self._family.planned

    def uphold(self, comparison: tuple[str, ...], adjusted_p: float) -> bool:
        """Whether a claim of REGRESSED is upheld; once upheld it stays so.

        Args:
            comparison: Names it among all of this run.
            adjusted_p: Its p-value, adjusted for the looks that were taken.
        """
        self.count(comparison)
        if comparison in self._upheld:
            return True
        if not self._family.upholds(adjusted_p):
            return False
        self._family = self._family.with_claim()
        self._upheld.add(comparison)
        return True
