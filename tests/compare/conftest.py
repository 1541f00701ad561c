"""A machine for the judge of a test: loads and rounds are made up, and take as long as is said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from typing_extensions import Self

from pytest_gpuserve.builds.base import NotInGit
from pytest_gpuserve.builds.checkout import Revision
from pytest_gpuserve.builds.relocation import Relocation
from pytest_gpuserve.builds.worktree import ReferenceBuild, ReferenceBuilds
from pytest_gpuserve.compare import measurement, side_by_side
from pytest_gpuserve.compare.assertions import Comparison, Run
from pytest_gpuserve.compare.baseline_store import BaselineStore, RunEnvironment
from pytest_gpuserve.compare.comparison import TestComparison
from pytest_gpuserve.compare.measurement import Bench, Policy
from pytest_gpuserve.errors import NotInRevision
from pytest_gpuserve.experiment.handle import ServerHandle, Starter, Target
from pytest_gpuserve.experiment.loaded import Progress
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.experiment.shared_starts import SharedStarts
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.measure.rounds import Round
from pytest_gpuserve.measure.window import GpuUse, Session, Start
from pytest_gpuserve.store.kept import KeptFolder
from pytest_gpuserve.verdict.metric import METRICS, Metric
from pytest_gpuserve.verdict.reason import ReasonKind
from pytest_gpuserve.verdict.verdict import Judgement
from tests.fakes.scripted_pairing import Build, ScriptedPairing
from tests.support.builders import AT, COMMIT, because, here, on_gpu, said, window_at

THROUGHPUT = METRICS["throughput"]
SAME, WORSE = Build(0.0), Build(0.35)
BETWEEN = Build(0.0306, start_sd=0.002, window_sd=0.01)
"""Half way between negligible and the tolerance: three rounds do not decide it."""

SHAPE = LoadShape(Closed(1))

SECONDS = 10.0
"""How long a session takes, or a look."""


@dataclass(frozen=True)
class FakeKind:
    """A kind of server that is never started, and knows to which revision it was taken."""

    name: str = "fake"
    is_in_base: bool = True
    transport: str = "http"
    python: str = "python"
    revision: str = ""

    def workload(self) -> Mapping[str, str]:
        """See `ServerKind`."""
        return {"server": self.name}

    def information(self) -> Mapping[str, str]:
        """See `ServerKind`."""
        return {}

    def relocated(self, relocation: Relocation) -> FakeKind:
        """See `ServerKind`."""
        if not self.is_in_base:
            raise NotInRevision(f"{relocation.revision} has no app.py")
        return replace(self, revision=str(relocation.revision))


class FakeOpponents(ReferenceBuilds):
    """Opponents without git: the commit that a baseline names is its base, and its hash repeated is its content."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.content_of = lambda commit: commit[:1] * 64  # type: ignore[assignment]

    def base_of(self, path: Path, is_same: Callable[[bytes], bool]) -> str:
        """See `ReferenceBuilds`."""
        raise NotInGit("there is no git here")

    def find(self, *, revision: str | None, python: str | None, called: str = "") -> ReferenceBuild:
        """See `ReferenceBuilds`."""
        name = f"{called or revision} ({str(revision)[:12]})"
        return ReferenceBuild(name, str(revision), Relocation(checkout=self._root, revision=name))


@dataclass
class World:
    """A machine with a GPU and its baselines, on which loads take as long as is said.

    Args:
        folder: Of baselines and of what is remembered.
        alone: The script of loads that are measured alone.
        paired: The script of loads beside their base.
        start_noise: Standard deviation of log cost between the starts of a session.
        problems: Of rounds, by their number.
        failures: Of rounds, by their number.
        here: The circumstances.
        history: The remembered rounds; None without them.
        clock_mhz: Of the GPU, in every window, on which a server alone has a gigabyte; None for no GPU.
        clocks_wanted: The baseline's clock that each session was told.
        reading: How fast the host is; None where that cannot be measured.
        foreign_cores: Cores that others take of the host beside a load that is measured alone.
        leak: Why nothing may be concluded from the last round, which shows at its servers' end; "" for nothing.
    """

    folder: Path
    alone: Build = SAME
    paired: Build = SAME
    start_noise: float = 0.015
    problems: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    failures: Mapping[int, Exception] = field(default_factory=dict)
    here: RunEnvironment = field(
        default_factory=lambda: replace(
            on_gpu(here()),
            revision=Revision(COMMIT, True, "c" * 64),  # noqa: FBT003
        )
    )
    history: KeptFolder | None = None
    clock_mhz: float | None = None
    clocks_wanted: list[float | None] = field(default_factory=list)
    reading: float | None = -3.5
    foreign_cores: float = 0.0
    leak: str = ""
    now: float = 0.0
    sessions: int = 0
    looks: int = 0
    pairings: list[ScriptedPairing] = field(default_factory=list)
    policy: Policy = field(
        default_factory=lambda: Policy(
            record_new=False,
            record_all=False,
            record_sessions=4,
            reason=None,
            skip_missing=False,
            skip_inconclusive=False,
            budget_seconds=1000.0,
            foreign_cores=1.0,
            stored_only=False,
            one_at_a_time=False,
            tolerances={},
        )
    )

    def __post_init__(self) -> None:
        self.bench = self._new_bench(None)

    def standing_in(self, monkeypatch: pytest.MonkeyPatch) -> Self:
        """Take the place of what measures, and of the clock."""
        monkeypatch.setattr(measurement, "take_session", self.take_session)
        monkeypatch.setattr(measurement, "Pairing", self.pairing)
        monkeypatch.setattr(measurement, "read_speed", lambda: self.reading)
        for module in (measurement, side_by_side):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=self.monotonic))
        return self

    def monotonic(self) -> float:
        """The clock."""
        return self.now

    def take_session(
        self, target: Target, shape: LoadShape, keep: Callable[[Session], None], progress: Progress
    ) -> None:
        """Replace `sampling.take_session`."""
        self.now += SECONDS
        self.sessions += 1
        self.clocks_wanted.append(shape.baseline_clock_mhz)
        gpus = None if self.clock_mhz is None else GpuUse(memory_bytes=1e9, sm_clock_mhz=self.clock_mhz)
        random = Random(f"alone {self.sessions}")
        session = self.alone.change + random.gauss(0.0, 0.003)
        costs = [session + random.gauss(0.0, self.start_noise) for _ in range(2)]
        starts = tuple(
            Start(
                tuple(msgspec.structs.replace(window_at(cost + random.gauss(0.0, 0.003)), gpus=gpus) for _ in range(4)),
                1.5,
                foreign_cores=self.foreign_cores,
                answers=1,
                answers_checked=1,
            )
            for cost in costs
        )
        keep(Session(starts, AT))

    def pairing(
        self,
        base: Target,
        candidate: Target,
        shape: LoadShape,
        progress: Progress,
        rounds: Iterable[Round],
        *,
        one_at_a_time: bool,
        **more: object,
    ) -> ScriptedPairing:
        """Replace `Pairing`."""
        world = self

        class Timed(ScriptedPairing):
            def measure(self, blocks: int) -> None:
                world.now += SECONDS
                world.looks += 1
                super().measure(blocks)

            def close(self) -> None:
                super().close()
                if world.leak and self.rounds:
                    self.rounds[-1] = replace(
                        self.rounds[-1], problems=because(world.leak, kind=ReasonKind.MEMORY_NOT_GIVEN_BACK)
                    )

        made = Timed(
            self.paired,
            rounds=list(rounds),
            problems=self.problems,
            failures=self.failures,
            one_at_a_time=one_at_a_time,
        )
        self.pairings.append(made)
        return made

    def judge(self, earlier: TestComparison | None = None) -> TestComparison:
        """The judge of a test."""
        return TestComparison(
            "test_x.py::test_a",
            bench=self.bench,
            policy=self.policy,
            on_look=lambda _: None,
            may_wait=lambda: False,
            earlier=earlier,
        )

    def next_run(self, against: Callable[[], ReferenceBuild] | None = None, **changes: Any) -> None:  # noqa: ANN401 -- fields of the policy
        """Begin another run of pytest."""
        self.policy = replace(self.policy, **changes)
        self.pairings.clear()
        self.now, self.looks = 0.0, 0
        self.bench = self._new_bench(against)

    def against(self) -> ReferenceBuild:
        """Base of `--against=main`."""
        return self.bench.reference_builds.find(revision="main", python=None)

    def record(self, **changes: Any) -> list[str]:  # noqa: ANN401 -- fields of the policy
        """Record what is measured now, in a run of pytest of its own; what is said."""
        self.next_run(**{"record_all": True, "record_sessions": 4, "reason": None, **changes})
        judge = self.judge()
        run = judge.measure(target(), SHAPE, None)
        ask(run, THROUGHPUT)
        lines = judge.record()
        judge.close()
        return lines

    def recorded(self, *, where: Mapping[str, Any] | None = None) -> None:
        """Let there be a baseline of another build, of four runs of pytest here or elsewhere: with other fields."""
        now_here, now_alone, policy = self.here, self.alone, self.policy
        self.alone = SAME
        where = {"revision": replace(now_here.revision, content="d" * 64), **(where or {})}
        for run in range(4):
            self.here = replace(now_here, occasion=f"2025-01-0{1 + run}T03:00:00+00:00", **where)
            assert self.record(record_sessions=2)
        self.here, self.alone = now_here, now_alone
        self.policy = policy
        self.next_run()
        self.sessions = 100

    def _new_bench(self, against: Callable[[], ReferenceBuild] | None) -> Bench:
        return Bench(
            here=self.here,
            baselines=BaselineStore(self.folder / "baselines", self.here),
            reference_builds=FakeOpponents(self.folder),
            kept=self.history,
            progress=cast("Progress", None),
            against=against,
            starts=SharedStarts(),
        )


def target(name: str = "fake", *, is_in_base: bool = True, python: str = "python") -> Target:
    """A request to a server that is never started; without an interpreter it runs already."""
    kind = FakeKind(name, is_in_base, python=python)
    return ServerHandle(cast("Any", kind), cast("Starter", None)).get("/")


def ask(run: Run, metric: Metric) -> Comparison:
    """Compare with the baseline, as an assertion does."""
    return run.judge(metric, "baseline", None)


def loaded(world: World, **options: Any) -> Judgement:  # noqa: ANN401 -- of `target`
    """Result of a test with one comparison."""
    judge = world.judge()
    comparison = ask(judge.measure(target(**options), SHAPE, None), THROUGHPUT)
    judge.close()
    assert comparison.holds is comparison.judgement.verdict.passes
    return comparison.judgement


def text_of(judgement: Judgement) -> str:
    """All its reasons."""
    return "\n".join(said(judgement.reasons))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A machine without baselines."""
    return World(tmp_path).standing_in(monkeypatch)
