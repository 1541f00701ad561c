"""What a session has to say of itself: on what and against what it measures, and what came of it so far."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.comparisons import planned_comparisons
from pytest_gpuserve.device.card import UNSUPPORTED
from pytest_gpuserve.items import measuring_ids
from pytest_gpuserve.report.header import Header
from pytest_gpuserve.report.results import SessionResult
from pytest_gpuserve.settings import Update
from pytest_gpuserve.sharding import part_of, tests_of_all_runners
from pytest_gpuserve.store.stock import stock_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

    from pytest_gpuserve.report.results import TestResult
    from pytest_gpuserve.session.folders import Folders
    from pytest_gpuserve.session.opening import Opened


class Account:
    """Makes the header and the result of a session.

    Args:
        session: pytest's, after its collection.
        opened: What it measures on and against.
        folders: Those that it makes.
        measuring: Whether tests will measure.
    """

    def __init__(self, session: pytest.Session, opened: Opened, folders: Folders, *, measuring: bool) -> None:
        self._session = session
        self._opened = opened
        self._settings = opened.settings
        self._folders = folders
        self._measuring = measuring

    @cached_property
    def header(self) -> str:
        """On what and against what is measured; where nobody asks for it at the beginning, as for a report only."""
        opened, settings, device = self._opened, self._settings, self._opened.here.device
        product = device.card.product if device.card else f"{device.host.cpu}, {device.host.cores} cores"
        mode = {
            Update.NOTHING: "gating against",
            Update.MISSING: "recording what is missing in",
            Update.ALL: "recording into",
        }[settings.update]
        what = f"{mode} {self._baselines}"
        if opened.against_name:
            what = f"side by side with {opened.against_name}"
        header = Header(
            device=device.name,
            product=product,
            mode=what,
            budget_seconds=settings.budget_seconds,
            comparisons=planned_comparisons(self._session.items),
            stock=""
            if opened.against_name or not self._measuring
            else str(stock_of(settings.baseline_dir / device.name)),
            engine="" if opened.engine is None else str(opened.engine),
        )
        return str(header)

    def result(self, tests: tuple[TestResult, ...], notes: Iterable[str], *, among: int) -> SessionResult:
        """What the session has to say so far.

        Args:
            tests: Those that measure, with what came of them.
            notes: What was noted.
            among: Comparisons among which its claims had to stand.
        """
        here, session, settings = self._opened.here, self._session, self._settings
        card, stored = here.device.card, not settings.side_by_side
        part = part_of(session.config)
        return SessionResult(
            gpu={
                **msgspec.to_builtins(here.device_record()),
                **({"unknown": dict(card.unknown)} if card is not None else {}),
            },
            host=msgspec.to_builtins(here.host_record()),
            tests=tests,
            notes=tuple(notes),
            places=(
                *self._unknown_facts(),
                *([f"baselines: {self._baselines}"] if stored else []),
                *self._folders.places(),
            ),
            header=self.header,
            at=here.occasion,
            commit=here.revision.commit,
            clean=here.revision.clean,
            software=dict(here.software),
            stored=stored,
            update=settings.update.option,
            shard=None if part is None else (part.number, part.of),
            planned=planned_comparisons(session.items),
            among=among,
            dealt=() if part is None else tuple(measuring_ids(tests_of_all_runners(session))),
            against=self._opened.against_name,
        )

    @property
    def _baselines(self) -> str:
        """Where they are, as people call it."""
        return self._opened.ledger.shown(self._settings.baseline_dir / self._opened.here.device.name)

    def _unknown_facts(self) -> list[str]:
        """What of the card could not be read though it should have been: a rule may have needed it."""
        device = self._opened.here.device
        unknown = {} if device.card is None else device.card.unknown
        return [
            f"unknown of {device.name}: {fact}: {reason}" for fact, reason in unknown.items() if reason != UNSUPPORTED
        ]
