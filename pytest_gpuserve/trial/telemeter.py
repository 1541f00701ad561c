"""Who looks at the cards while a session measures: nobody until the first load, and then one sampler for all loads."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.samples import SLOW_GAP_NS
from pytest_gpuserve.trial.lookout import LOOK_NS, Lookout, NoEyes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from pytest_gpuserve.trial.lookout import Eyes

_COUNT: Final = re.compile(r"(?<![\w-])\d+(?![\w-])")
"""A number by itself, and no part of a name such as a card's."""


class Telemeter:
    """The session's view of its cards.

    Without a card, as on the device ``cpu``, nothing is sampled: there its CPU is the device, and a sampler would use
    a part of what is measured. Telemetry is then absent.

    Args:
        uuids: Of the cards that are measured on; none where there is none.
        open_eyes: Makes what looks at them, when it is first needed.
        note: Hears what could not be seen; of texts that differ in counts alone only the first.
        without_ecc: Those of the cards that count no memory errors.
        clock: Of the samples, in ns.
    """

    def __init__(
        self,
        uuids: Iterable[str] = (),
        open_eyes: Callable[[], Eyes] = NoEyes,
        note: Callable[[str], None] = lambda _: None,
        *,
        without_ecc: Collection[str] = (),
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._uuids = tuple(uuids)
        self._open_eyes = open_eyes
        self._note = note
        self._without_ecc = without_ecc
        self._clock = clock
        self._eyes: Eyes | None = None
        self._free_ns: int | None = None
        self._noted: set[str] = set()
        self._open: list[Lookout] = []

    @contextmanager
    def lookout(self, *, baseline_clock_mhz: float | None = None) -> Iterator[Lookout]:
        """Look after the cards around a start of a server, which begins and ends within the block.

        Args:
            baseline_clock_mhz: As for `Lookout`.

        Raises:
            ServerFailed: There can be no more processes, or no temporary files.
        """
        if self._eyes is None:
            self._eyes = self._open_eyes() if self._uuids else NoEyes()
        eyes = self._eyes
        if self._free_ns is not None:
            # Long enough to see who else is on the card while nobody is who was started here.
            eyes.seen_until(self._free_ns + LOOK_NS)
            needed_ns = min((self._free_ns, *(lookout.since_ns for lookout in self._open)))
            eyes.forget_before(needed_ns - SLOW_GAP_NS)
        server_began_ns = self._clock()
        eyes.seen_until(server_began_ns)
        lookout = Lookout(
            eyes,
            self._uuids,
            since_ns=self._free_ns or 0,
            server_began_ns=server_began_ns,
            note=self._note_once,
            clock=self._clock,
            without_ecc=self._without_ecc,
            baseline_clock_mhz=baseline_clock_mhz,
        )
        self._open.append(lookout)
        try:
            yield lookout
            lookout.down()
        finally:
            self._open.remove(lookout)
            self._free_ns = self._clock() if lookout.free_ns is None else lookout.free_ns

    def _note_once(self, text: str) -> None:
        kind = _COUNT.sub("#", text)
        if kind not in self._noted:
            self._noted.add(kind)
            self._note(text)

    def close(self) -> None:
        """End what looks.

        Raises:
            ServerFailed: It survives SIGKILL.
        """
        eyes, self._eyes = self._eyes, None
        if eyes is not None:
            eyes.close()


NOBODY = Telemeter()
"""Looks at nothing."""
