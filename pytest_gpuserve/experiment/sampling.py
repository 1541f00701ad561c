"""Takes starts that are measured alone, each warmed up and then loaded window by window; a session are several."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpuserve.experiment.loaded import LoadedServer, host_watched
from pytest_gpuserve.experiment.shape import LEAST_WINDOWS, TICKS_A_WINDOW, WINDOW_SECONDS, windows_wanted
from pytest_gpuserve.measure.conditions import MOST_REJECTED_SHARE, too_many_rejected
from pytest_gpuserve.measure.rounds import of_arm
from pytest_gpuserve.measure.steady import truncate
from pytest_gpuserve.measure.window import Session, Window
from pytest_gpuserve.measure.work import unsteady_cache
from pytest_gpuserve.units import format_seconds, utc_now
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.loaded import Progress
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.experiment.telemetry import TelemetryMonitor
    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.measure.window import Start
    from pytest_gpuserve.servers.instance import Instance


def take_session(target: Target, shape: LoadShape, keep: Callable[[Session], None], progress: Progress) -> None:
    """Start the server ``shape.starts`` times and load each; see `take_starts`.

    Args:
        target: The request and its deployment.
        shape: The load.
        keep: Gets the session, even if Ctrl-C cuts it short.
        progress: Shown the progress of the load.

    Raises:
        ServerFailed: The server could not be started.
        LoadFailed: A load engine failed.
        KeyboardInterrupt: After ``keep``.
    """
    at = utc_now()
    order: Sequence[Arm] = ["candidate"] * shape.starts
    taken, problems = take_starts(order, {"candidate": target}, lambda _: target.started(), shape, progress)
    starts = taken["candidate"]
    drift = unsteady_cache(start.windows for start in starts)
    if drift is not None and not problems:
        problems.append(drift)
    keep(Session(tuple(starts), at, tuple(problems)))
    if is_interrupted(problems):
        raise KeyboardInterrupt


def is_interrupted(problems: Iterable[Reason]) -> bool:
    """Whether Ctrl-C cut a measurement short."""
    return any(problem.kind is ReasonKind.INTERRUPTED for problem in problems)


def take_starts(
    order: Sequence[Arm],
    targets: Mapping[Arm, Target],
    started: Callable[[Arm], AbstractContextManager[Instance]],
    shape: LoadShape,
    progress: Progress,
) -> tuple[dict[Arm, list[Start]], list[Reason]]:
    """Measure fresh starts, one after the other.

    A start that was disturbed as a whole is measured again, at most as often as there are starts. It is disturbed if
    others took too many of the host's cores, the client was late or saturated, or no steady state was found. So is a
    load that is measured as a whole by one disturbed window. A disturbance of the last try becomes a problem.

    Trouble under load ends it early. What was measured until then is kept, but proves nothing.

    Args:
        order: Server of each start.
        targets: The requests of each server.
        started: Starts a server.
        shape: The load of each start.
        progress: Shown the progress of the loads.

    Returns:
        The starts with windows of each server, in their order, and the reasons why they prove nothing; Ctrl-C is one.

    Raises:
        GpuserveError: ``started`` failed.
        LoadFailed: A load engine failed.
    """
    taken: dict[Arm, list[Start]] = {arm: [] for arm in targets}
    problems: list[Reason] = []
    spare, waiting = len(order), list(order)
    disturbed: tuple[str, ...] = ()
    try:
        while waiting and not problems:
            arm = waiting[0]
            source = targets[arm].telemetry_source
            with source.monitor(baseline_clock_mhz=shape.baseline_clock_mhz) as monitor:
                with started(arm) as instance:
                    server = LoadedServer(instance, targets[arm], shape, progress)
                    start = measure_start(server, monitor)
                # Kept now, because the end of the server may yet be interrupted.
                problems.extend(of_arm(arm, server.problems))
                why = list(map(str, server.disturbances))
                if start.foreign_cores > shape.foreign_cores:
                    why.append(f"others took {start.foreign_cores:.2f} of the host's cores")
                if why and spare and not problems:
                    spare -= 1
                    disturbed += start.rejected + ("; ".join(why),) * (start.discarded + len(start.windows))
                else:
                    problems.extend(of_arm(arm, server.disturbances))
                    if start.windows:
                        taken[arm].append(replace(start, rejected=disturbed + start.rejected))
                        disturbed = ()
                    del waiting[0]
            problems.extend(monitor.problems())
    except KeyboardInterrupt:
        text = f"interrupted by Ctrl-C after {len(order) - len(waiting)} starts: not decided"
        problems.append(Reason(ReasonKind.INTERRUPTED, text))
    return taken, problems


def measure_start(server: LoadedServer, monitor: TelemetryMonitor) -> Start:
    """Warm a server up, measure, lengthen if needed, measure disturbed windows again, cut off what is not steady.

    Trouble under load ends the start early and appears in the server's ``problems``. So does Ctrl-C: the caller raises
    it again once the measurement is safe.

    Raises:
        LoadFailed: The load could not be begun.
    """
    try:
        monitor.up(server.instance)
        with ExitStack() as stack:
            server.warm_up(stack, goes_on=True)
            with host_watched([server]) as server.use:
                _take_windows(server, monitor)
        _judge_rejected(server)
        if not server.problems:
            _cut(server)
            server.judge()
    except KeyboardInterrupt:
        text = f"interrupted by Ctrl-C after {len(server.measured)} windows: not decided"
        server.problems.append(Reason(ReasonKind.INTERRUPTED, text))
    return server.record()


def _take_windows(server: LoadedServer, monitor: TelemetryMonitor) -> None:
    """Measure windows until they are enough; those with a disturbed GPU or a disturbed client are dropped."""
    shape, goal = server.shape, server.shape.windows
    while not server.problems and not server.ended:
        goal = _goal(server, goal)
        if len(server.measured) >= goal:
            return
        measured = server.turn(0, TICKS_A_WINDOW, seed=shape.seed)
        if measured is None:
            monitor.look()
            continue
        # The wait for the next sample does not hold the load up: its ticks come meanwhile and are counted.
        ((window, reasons),) = monitor.judge([measured.window])
        server.problems.extend(monitor.problems())
        # If a load is measured as a whole, its windows cannot be repeated, and the client is judged at the end.
        reasons += () if shape.finite else server.disturbed(measured.ticks)
        server.settle([window], reasons)
        rejected = sum(map(bool, server.tried))
        wanted = rejected + max(goal, len(server.measured))
        if reasons and not server.problems and rejected > MOST_REJECTED_SHARE * wanted:
            # Too many windows were lost, even if all others were good.
            server.problems.extend(too_many_rejected(server.tried))


def _goal(server: LoadedServer, goal: int) -> int:
    """Number of windows that the start should reach; the present number if these are enough."""
    shape, windows = server.shape, server.windows
    count = len(windows)
    if not shape.finite and count >= LEAST_WINDOWS:
        if _is_ended_by_user(windows, shape):
            return count
        if count >= shape.most_windows:
            server.problems.extend(_not_reached(windows, shape))
            return count
        if shape.ends_by_time and count >= goal:
            return windows_wanted(windows, shape)
    return max(goal, count + 1)


def _is_ended_by_user(windows: Sequence[Window], shape: LoadShape) -> bool:
    if shape.requests is not None:
        return sum(window.requests for window in windows) >= shape.requests
    return shape.until is not None and bool(shape.until(tuple(windows)))


def _not_reached(windows: Sequence[Window], shape: LoadShape) -> list[Reason]:
    """Reason why the longest start was too short for its own end; empty if it ends by its time."""
    if shape.ends_by_time:
        return []
    total = Window.pooled(windows)
    end = "until=..." if shape.requests is None else f"requests={shape.requests}"
    text = (
        f"too short: {total.requests} requests in {format_seconds(total.seconds)} did not reach {end}; allow more with"
        " load(..., seconds=...)"
    )
    return [Reason(ReasonKind.TOO_SHORT, text)]


def _judge_rejected(server: LoadedServer) -> None:
    if server.problems:
        return
    server.problems.extend(too_many_rejected(server.tried))
    rejected = [reasons for reasons in server.tried if reasons]
    if server.shape.finite and rejected and not server.problems:
        text = (
            f"{'; '.join(map(str, rejected[0]))}; {len(rejected)} of {len(server.tried)} windows were disturbed,"
            " and this load is measured as a whole, so that none of them can be measured again"
        )
        server.disturbances.append(rejected[0][0].with_text(text))


def _cut(server: LoadedServer) -> None:
    """Cut windows off the front until the rest is steady."""
    if server.shape.finite:
        return
    cut = truncate([window.throughput for window in server.windows])
    if not cut.steady:
        text = (
            f"no steady state: after {len(server.measured)} windows of {WINDOW_SECONDS:.1f} s the"
            " throughput still changed; give it longer with load(..., warmup_seconds=...)"
        )
        server.disturbances.append(Reason(ReasonKind.NO_STEADY_STATE, text))
    del server.measured[: cut.discard]
    server.discarded = cut.discard
