"""The load generator as a command: ``python -m pytest_gpuserve.load URL --concurrency 16 --requests 100000``.

Exit status: 0 for a valid measurement, 1 for one from which nothing may be concluded, 2 for a wrong argument, 130 for
one that Ctrl-C ended.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypedDict

import msgspec

from pytest_gpuserve.device.host import read_host
from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.load.arguments import make_parser, of_option
from pytest_gpuserve.load.ceiling import load_ceiling
from pytest_gpuserve.load.command_engine import chosen_engine, workers_of
from pytest_gpuserve.load.command_plan import check_of, headers_of, length_ns, plan_of, warmup_ns
from pytest_gpuserve.load.command_progress import progress_on_terminal
from pytest_gpuserve.load.run import run_load
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.load.summary import summary_json, summary_text
from pytest_gpuserve.process.command_line import INTERRUPTED, failed, refused, run_command
from pytest_gpuserve.process.secrets import secret_headers, without_secrets

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from pytest_gpuserve.load.run import Outcome
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.validity import Reason


class _About(TypedDict):
    """What text and JSON are told beside the totals."""

    schedule: Schedule
    processes: int
    reasons: Sequence[Reason]
    checked: int | None
    ceiling_per_second: float | None


def main(argv: Sequence[str]) -> int:
    """Load, print, and return the exit status."""
    try:
        return _load(make_parser().parse_args(argv))
    except UsageProblem as problem:
        return refused(problem)
    except GpuserveError as problem:
        return failed(problem)


def run() -> int:
    """Run the command on this process's arguments."""
    return run_command(main)


def _load(arguments: argparse.Namespace) -> int:
    plan = plan_of(arguments)
    check = check_of(arguments, len(plan.payloads))
    not_counted_ns = warmup_ns(arguments.warmup, plan)
    # A wrong GPUSERVE_HOST is told before the load, not after it.
    cores = read_host().cores
    show, clear = progress_on_terminal(length_ns(plan))
    option, workers = workers_of(arguments)
    with chosen_engine(arguments) as engine:
        try:
            outcome = run_load(
                plan,
                processes=workers,
                warmup_ns=not_counted_ns,
                check=check,
                allowed_errors=arguments.allowed_errors,
                # What this host has and reaches says nothing of others.
                cores=cores if engine.is_here else None,
                ceiling=partial(load_ceiling, plan, workers) if engine.is_here else None,
                on_tick=show,
                source=engine,
            )
        except UsageProblem as problem:
            # Too many connections for the limit on open files, or too few for the processes.
            remedies = [remedy.replace("processes=", f"{option} ") for remedy in problem.remedies]
            raise of_option(option, problem, remedies=remedies) from problem
        finally:
            clear()
    outcome = _fit_to_show(outcome, headers_of(arguments.header))
    about = _About(
        schedule=plan.schedule,
        processes=workers,
        reasons=outcome.reasons,
        checked=outcome.checked,
        ceiling_per_second=outcome.ceiling_per_second,
    )
    if arguments.json:
        values = {**summary_json(outcome.totals, **about), "engine": engine.name}
        text = msgspec.json.format(msgspec.json.encode(values), indent=2).decode()
    else:
        text = summary_text(outcome.totals, **about)
        if engine is not LOCAL:
            text = f"Engine: {engine.name}; {workers} worker{'s' if workers > 1 else ''}\n\n{text}"
    print(text)  # noqa: T201 -- a command
    if outcome.interrupted:
        return INTERRUPTED
    return 1 if outcome.reasons else 0


def _fit_to_show(outcome: Outcome, headers: Mapping[str, str]) -> Outcome:
    """Take out the secrets of this process and of the request, which an answer may repeat."""
    shown = partial(without_secrets, environment={**os.environ, **secret_headers(headers)})
    samples = {kind: shown(sample) for kind, sample in outcome.totals.error_samples.items()}
    return replace(
        outcome,
        totals=replace(outcome.totals, error_samples=samples),
        reasons=tuple(replace(reason, text=shown(reason.text)) for reason in outcome.reasons),
    )
