"""Takes a session: fresh starts of a server, each warmed up and then loaded window by window."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpuserve.experiment.loaded import LoadedStart
from pytest_gpuserve.load.answers import AnswerCheck, answer_reasons
from pytest_gpuserve.measure.window import Session
from pytest_gpuserve.measure.work import unsteady_cache
from pytest_gpuserve.units import utc_now
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.experiment.watch import Progress
    from pytest_gpuserve.measure.window import Start


def take_session(target: Target, shape: LoadShape, keep: Callable[[Session], None], progress: Progress) -> None:
    """Start the server ``shape.starts`` times and load each.

    A start that was disturbed as a whole is measured again, at most as often as there are starts. It is disturbed if
    others took too many of the host's cores, the client was late or saturated, or no steady state was found. A
    disturbance of the last try becomes a problem.

    Trouble under load ends the session early and appears in its ``problems``. The session keeps what was measured until
    then, but proves nothing.

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
    check = AnswerCheck((request.expect for request in target.requests), wants_all=shape.check == "all")
    starts: list[Start] = []
    batch_sizes: Counter[str] = Counter()
    problems: list[Reason] = []
    interrupted = False
    disturbed: tuple[str, ...] = ()
    spare = shape.starts
    try:
        while len(starts) < shape.starts and not problems:
            with target.telemetry_source.monitor(baseline_clock_mhz=shape.baseline_clock_mhz) as monitor:
                with target.started() as instance:
                    loaded = LoadedStart(instance, target, shape, check, progress, monitor)
                    start = loaded.measure()
                # Kept now, because the end of the server may yet be interrupted.
                problems.extend(loaded.problems)
                why = list(map(str, loaded.disturbances))
                if start.foreign_cores > shape.foreign_cores:
                    why.append(f"others took {start.foreign_cores:.2f} of the host's cores")
                if why and spare and not problems:
                    spare -= 1
                    disturbed += start.rejected + ("; ".join(why),) * (start.discarded + len(start.windows))
                else:
                    problems.extend(loaded.disturbances)
                    if start.windows:
                        starts.append(replace(start, rejected=disturbed + start.rejected))
                        disturbed = ()
                        if start.counters is not None:
                            batch_sizes.update(start.counters.batch_sizes)
                interrupted = loaded.interrupted
            problems.extend(monitor.problems())
    except KeyboardInterrupt:
        interrupted = True
        text = f"interrupted by Ctrl-C after {len(starts)} starts: not decided"
        problems.append(Reason(ReasonKind.INTERRUPTED, text))
    drift = unsteady_cache(start.windows for start in starts)
    if not problems:
        problems.extend([*answer_reasons(check, []), *([drift] if drift else [])])
    keep(
        Session(
            starts=tuple(starts),
            at=at,
            problems=tuple(problems),
            batch_sizes=dict(batch_sizes),
            answers=check.answers,
            answers_checked=check.checked,
        )
    )
    if interrupted:
        raise KeyboardInterrupt
