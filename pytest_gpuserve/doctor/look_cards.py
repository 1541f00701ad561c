"""Looks at the cards twice, with something else in between."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from pytest_gpuserve.device.binding import Reader, opened
from pytest_gpuserve.device.card_probe import CardProbe
from pytest_gpuserve.device.sample import Unknown
from pytest_gpuserve.device.select import visible_cards
from pytest_gpuserve.doctor.attempt import attempt
from pytest_gpuserve.doctor.facts import CardNow
from pytest_gpuserve.doctor.look_lock import read_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from pytest_gpuserve.device.card import Card, NvmlAnswer
    from pytest_gpuserve.device.sample import CardEvent, CardSample


def look_at_cards(answer: NvmlAnswer, visible: str | None, *, meanwhile: Callable[[], object]) -> tuple[CardNow, ...]:
    """Look at each card before and after something that takes a while.

    Args:
        answer: What NVML said of them.
        visible: CUDA_VISIBLE_DEVICES, None if it is not set.
        meanwhile: What takes a while; called once, whether there are cards or not.
    """
    seen = visible_cards(answer.cards, visible)
    watched = [_Watched(card) for card in answer.cards]
    with ExitStack() as stack:
        nvml = _initialised(stack, watched)
        for each in watched:
            each.begin(nvml)
            each.look()
        meanwhile()
        for each in watched:
            each.look()
    return tuple(each.now(visible=each.card in seen) for each in watched)


class _Watched:
    """A card, and what was seen of it."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.unknown: dict[str, str] = {}
        self._events: list[CardEvent] = []
        self._samples: list[CardSample] = []
        self._probe: CardProbe | None = None

    def begin(self, nvml: ModuleType | None) -> None:
        """Find it; without NVML there is nothing to be found."""
        if nvml is not None:
            # Nothing of ours is on a card now.
            self._probe = attempt(
                self.unknown,
                "the card",
                lambda: CardProbe(nvml, self.card.uuid, tell=self._hear, is_ours=lambda _: False),
            )

    def look(self) -> None:
        """Look at it."""
        probe = self._probe
        if probe is not None:
            sample = attempt(self.unknown, "the card", lambda: probe.read(slow=True))
            self._samples += [] if sample is None else [sample]

    def now(self, *, visible: bool) -> CardNow:
        """What was seen."""
        return CardNow(
            card=self.card,
            visible=visible,
            samples=tuple(self._samples),
            events=tuple(self._events),
            unknown=self.unknown,
            lock=read_lock(self.card.uuid),
        )

    def _hear(self, told: CardEvent | Unknown) -> None:
        if isinstance(told, Unknown):
            self.unknown[told.what] = told.why
        else:
            self._events.append(told)


def _initialised(stack: ExitStack, watched: Sequence[_Watched]) -> ModuleType | None:
    """The binding, until the stack's end; None where that is of no use, or fails, which is kept as the reason."""
    if not watched:
        return None
    import pynvml  # noqa: PLC0415 -- where it is needed, as by `list_cards`

    try:
        stack.enter_context(opened(pynvml))
    except pynvml.NVMLError as error:
        for each in watched:
            each.unknown["the card"] = Reader(pynvml).said(error)
        return None
    binding: ModuleType = pynvml
    return binding
