"""Telemetry of the GPU around a start of one or two servers, and whether it allows a measurement."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.device.sampler import SAMPLE_NS
from pytest_gpuserve.measure.conditions import (
    GAP_NS,
    NS,
    between,
    error_reasons,
    gpu_use,
    memory_reasons,
    process_reasons,
    rest_reasons,
    samples_of,
    unknown_text,
    use_reasons,
    window_reasons,
)
from pytest_gpuserve.servers.instance import gpu_remedy
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_gpuserve.device.gpu_probe import GpuSample
    from pytest_gpuserve.device.sampler import SamplerProcess
    from pytest_gpuserve.measure.window import Window
    from pytest_gpuserve.servers.instance import Instance

RELEASE_NS: Final = 5 * NS
"""Time in which a driver may give back the memory of a server that has ended."""

REST_NS: Final = NS + SAMPLE_NS
"""Time for which a free GPU is watched before a start: a utilisation is an average over up to a second."""


@dataclass
class TelemetryMonitor:
    """Monitor of the GPU from before a server's start until after its end.

    Args:
        sampler: Samples the GPU; None without a GPU, and then the monitor finds no problem.
        since_ns: Begin of the samples that belong to this start.
        server_began_ns: Time of the server's start.
        note: Called with the values that could not be read.
        clock: Clock of the samples, in ns.
        baseline_clock_mhz: Mean SM clock of the computing GPU under the same load when the baseline was recorded; None
            if unknown.
        free_ns: Time when the server's memory was given back; later samples belong to the next start. None until then.
    """

    sampler: SamplerProcess | None = None
    since_ns: int = 0
    server_began_ns: int = 0
    note: Callable[[str], None] = lambda _: None
    clock: Callable[[], int] = time.perf_counter_ns
    baseline_clock_mhz: float | None = None
    free_ns: int | None = None
    _memory_before: int | None = None
    _ours: set[int] = field(default_factory=lambda: {os.getpid()})
    _up_ns: int | None = None
    _load_ns: tuple[int, int] = (0, 0)
    _loaded_until_ns: int = 0
    _use_remedy: str = ""
    _known: set[tuple[ReasonKind, str]] = field(default_factory=set)
    _problems: list[Reason] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._memory_before = self._memory()

    def up(self, *instances: Instance) -> None:
        """Note that the server answers, and which processes are its own.

        If the server was not started here, its GPU is unknown, and the monitor stops watching.
        """
        if self.sampler is None:
            return
        for instance in instances:
            if instance.process is None:
                self.note("telemetry absent: the server was not started here, so its GPU is not known")
                self.sampler = None
                return
            self._ours |= {instance.process.pid, *instance.members()}
        self._use_remedy = "; ".join(dict.fromkeys(gpu_remedy(instance.kind) for instance in instances))
        self._up_ns = self.clock()

    def judge(self, windows: Sequence[Window]) -> list[tuple[Window, tuple[Reason, ...]]]:
        """Judge the GPU in windows, and look for problems that make the whole run invalid.

        It waits a tenth of a second for the samples that cover the last window.

        Args:
            windows: Windows in order of time, at least one.

        Returns:
            The windows, each with the use of its GPU, and the reasons to measure it again.
        """
        sampler = self.sampler
        if sampler is None:
            return [(window, ()) for window in windows]
        self._load_ns = self._load_ns[0] or windows[0].begin_ns, windows[-1].end_ns
        self._look(sampler, windows[-1].end_ns)
        judged = []
        for window in windows:
            seen = samples_of(sampler.samples, window.begin_ns, window.end_ns)
            use = gpu_use(sampler.samples, window.begin_ns, window.end_ns)
            reasons = window_reasons(seen, use.sm_clock_mhz, baseline_mhz=self.baseline_clock_mhz)
            judged.append((msgspec.structs.replace(window, gpus=use), reasons))
        return judged

    def look(self) -> None:
        """Look for problems until now, while the load still runs or has just been broken off by trouble."""
        if self.sampler is not None:
            self._look(self.sampler, self.clock())

    def _look(self, sampler: SamplerProcess, until_ns: int) -> None:
        self._loaded_until_ns = until_ns
        sampler.wait_until(until_ns)
        self._check(sampler)

    def problems(self) -> list[Reason]:
        """Reasons why the run proves nothing. Each reason is returned once, to the first caller."""
        found, self._problems = self._problems, []
        return found

    def down(self) -> None:
        """Note that the server has ended: it must have given back its memory, or do so soon."""
        sampler = self.sampler
        if sampler is None:
            return
        ended_ns = self.clock()
        while True:
            sampler.wait_until(self.clock() + SAMPLE_NS)
            kept = memory_reasons(self._memory_before, self._memory())
            if not kept or sampler.problem or self.clock() - ended_ns > RELEASE_NS:
                break
        self.free_ns = self.clock()
        # An error of the last moments is seen with the next sample.
        sampler.wait_until(self.free_ns + SAMPLE_NS)
        self._check(sampler)
        self._report(() if sampler.problem else kept)
        unknown = unknown_text(self._own(sampler), self._ours)
        if unknown:
            self.note(unknown)

    def _check(self, sampler: SamplerProcess) -> None:
        """Look for problems that make the run invalid, in all samples so far."""
        sampler.read()
        own = self._own(sampler)
        self._report(error_reasons(own, load_ns=(self._up_ns or 0, self._loaded_until_ns)))
        if self._up_ns is not None:
            # A server's processes that ended before it was up are not known as ours.
            told = [sample for sample in own if not self.server_began_ns <= sample.at_ns < self._up_ns]
            self._report(process_reasons(told, self._ours, server_began_ns=self.server_began_ns))
        self._report(rest_reasons(between(own, self.since_ns + NS, self.server_began_ns)))
        under_load, before = between(own, *self._load_ns), self._memory_before
        self._report(use_reasons(under_load, self._ours, before_bytes=before, remedy=self._use_remedy))
        if sampler.problem:
            self._report([Reason(ReasonKind.GPU_UNKNOWN, sampler.problem)])

    def _report(self, problems: Iterable[Reason]) -> None:
        for problem in problems:
            which = problem.kind, problem.about
            if which not in self._known:
                self._known.add(which)
                self._problems.append(problem)

    def _own(self, sampler: SamplerProcess) -> Sequence[GpuSample]:
        return between(sampler.samples, self.since_ns, self.clock() + 1)

    def _memory(self) -> int | None:
        samples = () if self.sampler is None else self.sampler.samples
        return samples[-1].memory_bytes if samples else None


class TelemetrySource:
    """The session's view of its GPU.

    The device ``cpu`` has neither samples nor telemetry: a sampler would use part of the CPU that is measured.

    Args:
        open_sampler: Starts the sampler when it is first needed; None without a GPU.
        note: Called with the values that could not be read.
        clock: Clock of the samples, in ns.
    """

    def __init__(
        self,
        open_sampler: Callable[[], SamplerProcess] | None = None,
        note: Callable[[str], None] = lambda _: None,
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._open_sampler = open_sampler
        self._note = note
        self._clock = clock
        self._sampler: SamplerProcess | None = None
        self._free_ns = 0

    @contextmanager
    def monitor(self, *, baseline_clock_mhz: float | None = None) -> Iterator[TelemetryMonitor]:
        """Watch the GPU around a start of a server, which begins and ends within the block; one block at a time.

        Args:
            baseline_clock_mhz: As for `TelemetryMonitor`.

        Raises:
            ServerFailed: The sampler could not be started: no more processes, or no temporary files.
        """
        if self._open_sampler is None:
            yield TelemetryMonitor(note=self._note)
            return
        if self._sampler is None:
            self._sampler = self._open_sampler()
            self._free_ns = self._clock()
        sampler = self._sampler
        # Long enough to see foreign use of the GPU while none of ours is there.
        sampler.wait_until(self._free_ns + REST_NS)
        sampler.forget_before(self._free_ns - GAP_NS)
        server_began_ns = self._clock()
        sampler.wait_until(server_began_ns)
        monitor = TelemetryMonitor(
            sampler,
            since_ns=self._free_ns,
            server_began_ns=server_began_ns,
            note=self._note,
            clock=self._clock,
            baseline_clock_mhz=baseline_clock_mhz,
        )
        try:
            yield monitor
        except Exception:
            # A server that failed gives its memory back too. To the next start, the rest would be foreign use.
            monitor.down()
            raise
        else:
            monitor.down()
        finally:
            self._free_ns = self._clock() if monitor.free_ns is None else monitor.free_ns

    def close(self) -> None:
        """Stop the sampler.

        Raises:
            ServerFailed: The sampler survives SIGKILL.
        """
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.close()


NO_TELEMETRY = TelemetrySource()
"""Source without a GPU, whose monitors watch nothing."""
