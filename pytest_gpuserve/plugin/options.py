"""Command line and ini file, converted once to frozen settings; all mistakes in them are found here."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.plugin.outputs import add_output_options, read_outputs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpuserve.plugin.outputs import Output


class Update(Enum):
    """Kind of update of the baselines."""

    NOTHING = "nothing"
    MISSING = "missing entries"
    ALL = "all measured entries"

    @property
    def option(self) -> str:
        """The option that requests it; empty for no update."""
        return {Update.NOTHING: "", Update.MISSING: "--baseline-update-new", Update.ALL: "--baseline-update"}[self]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of this session.

    Args:
        gpu: ``auto``, ``cpu`` or a device's name.
        update: Update of the baselines.
        baseline_dir: Folder of the baselines, or a copy of those that are elsewhere.
        missing_fails: Whether a missing baseline fails its test, or skips it.
        inconclusive_fails: Whether an undecided verdict fails its test, or skips it.
        budget_seconds: Most measuring time of one test.
        artifacts_dir: Folder of the tests' own tables and charts; None for pytest's cache.
        full: Whether the published sizes are measured too.
        reason: Reason why an update may loosen a metric.
        record_sessions: Sessions that a recording takes of each load; None for the device's own number.
        foreign_cores: Cores that other processes may take during a measurement.
        lock_wait_seconds: Longest wait for another session that measures on the device.
        against: The git revision that every comparison with ``baseline`` is paired with, or None.
        against_python: Absolute path of the interpreter whose packages it is paired with, or None.
        stored_only: Whether rounds beside a baseline's base commit are forbidden.
        base_files: As in `Rules`.
    """

    gpu: str
    update: Update
    baseline_dir: Path
    root: Path
    missing_fails: bool
    inconclusive_fails: bool
    budget_seconds: float
    outputs: tuple[Output, ...]
    reason: str | None
    record_sessions: int | None
    foreign_cores: float
    lock_wait_seconds: float
    against: str | None = None
    against_python: str | None = None
    stored_only: bool = False
    base_files: tuple[str, ...] = ()
    artifacts_dir: Path | None = None
    full: bool = False
    load_engine: str = "local"

    @property
    def side_by_side(self) -> bool:
        """Whether ``baseline`` is another revision or interpreter, measured beside each load, not a stored one."""
        return self.against is not None or self.against_python is not None


POLICIES: Final = ("fail", "skip")

BUDGET_SECONDS: Final = 300.0
"""Default of the most measuring time of one test."""

ENGINE_OPTION: Final = "--load-engine"


def add_options(parser: pytest.Parser) -> None:
    """Declare options and ini settings."""
    group = parser.getgroup("gpuserve", "performance gates for model servers")
    group.addoption(
        "--gpu",
        metavar="NAME",
        help="device to measure on: auto (default), cpu, or a name such as T4 or A100-SXM4-80GB",
    )
    group.addoption("--baseline-update", action="store_true", help="record baselines of all tests that run and pass")
    group.addoption("--baseline-update-new", action="store_true", help="record baselines of tests that have none")
    group.addoption(
        "--baseline-dir",
        metavar="DIR",
        help="folder of the baselines (default: baselines/ in the rootdir)",
    )
    group.addoption(
        "--against",
        metavar="REV",
        help="compare with that git revision, side by side, instead of stored baselines: origin/main, HEAD~1, a hash",
    )
    group.addoption(
        "--against-python",
        metavar="EXE",
        help="compare with the packages of that interpreter, side by side; --against may add a revision",
    )
    group.addoption(
        "--stored-only",
        action="store_true",
        default=None,
        help="judge by stored baselines alone, without rounds beside their base commits; INCONCLUSIVE on cpu",
    )
    group.addoption("--on-missing", choices=POLICIES, help="outcome of a test without a baseline (default: fail)")
    group.addoption("--on-inconclusive", choices=POLICIES, help="outcome of an undecided test (default: fail)")
    group.addoption(
        ENGINE_OPTION,
        metavar="ENGINE",
        help="load engines: local (default), ray (workers on a Ray cluster that this run starts and ends), or"
        " the address of an existing cluster: ray://HOST:PORT or HOST:PORT",
    )
    group.addoption(
        "--gpuserve-budget",
        metavar="SECONDS",
        help=f"most time that one test may measure (default: {BUDGET_SECONDS:.0f})",
    )
    add_output_options(parser, group)
    group.addoption(
        "--gpuserve-full",
        action="store_true",
        help="also run tests marked gpuserve_full; the fixture full_size is then True",
    )
    group.addoption(
        "--gpuserve-artifacts",
        metavar="DIR",
        help="folder for the tables and charts that tests write (default: in pytest's cache)",
    )
    group.addoption("--reason", metavar="TEXT", help="why a baseline update may record a worse value")
    group.addoption(
        "--gpuserve-docs", action="store_true", help="print the folder of the documentation, and run no tests"
    )
    for name, default, text in (
        ("gpu", "auto", "like --gpu"),
        ("baseline_dir", "", "like --baseline-dir, relative to the rootdir"),
        ("against", "", "like --against"),
        ("against_python", "", "like --against-python, relative to the rootdir"),
        ("on_missing", "fail", "like --on-missing"),
        ("on_inconclusive", "fail", "like --on-inconclusive"),
        ("gpuserve_budget", "", "like --gpuserve-budget (default: 300)"),
        ("gpuserve_artifacts", "", "like --gpuserve-artifacts, relative to the rootdir"),
        ("gpuserve_sessions", "", "sessions that --baseline-update takes of each load (default: 3, on cpu 1)"),
        (
            "gpuserve_foreign_cores",
            "0.25",
            "cores that other processes may take during a measurement, or 5 % of all if that is more (default: 0.25)",
        ),
        ("gpuserve_load_engine", "local", "like --load-engine"),
        (
            "gpuserve_lock_wait",
            "600",
            "seconds to wait for another pytest run on the same GPU, or on cpu (default: 600)",
        ),
    ):
        parser.addini(name, text, default=default)
    parser.addini(
        "gpuserve_base_files",
        "git-ignored files that the base's folder gets too, one pattern a line; !PATTERN leaves files out",
        type="linelist",
        default=[],
    )
    parser.addini("stored_only", "like --stored-only", type="bool", default=False)


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def read_settings(config: pytest.Config, environment: Mapping[str, str] = os.environ) -> Settings:
    """Read and check all options.

    Raises:
        pytest.UsageError: A setting is wrong; the text names it, its value, and the allowed values.
    """
    missing = _choice(config, "on_missing", ("", *POLICIES))
    # By these variables pytest itself recognises CI.
    ci = bool(environment.get("CI") or environment.get("BUILD_NUMBER"))
    update = _update(config, ci=ci)
    against, against_python = _against(config), _against_python(config)
    if against is not None or against_python is not None:
        _check_comparing(config, update)
    return Settings(
        gpu=_text(config, "gpu"),
        update=update,
        baseline_dir=_folder(config, "baseline_dir") or config.rootpath / "baselines",
        root=config.rootpath,
        missing_fails=missing != "skip",
        inconclusive_fails=_choice(config, "on_inconclusive", POLICIES) == "fail",
        budget_seconds=_number(config, "gpuserve_budget", BUDGET_SECONDS),
        # A worker of pytest-xdist measures nothing.
        outputs=() if is_worker(config) else read_outputs(config),
        reason=config.getoption("--reason"),
        record_sessions=_sessions(config),
        foreign_cores=_number(config, "gpuserve_foreign_cores"),
        lock_wait_seconds=_number(config, "gpuserve_lock_wait"),
        against=against,
        against_python=against_python,
        base_files=tuple(config.getini("gpuserve_base_files")),
        stored_only=config.getini("stored_only") if config.getoption("--stored-only") is None else True,
        artifacts_dir=_folder(config, "gpuserve_artifacts"),
        full=config.getoption("--gpuserve-full"),
        load_engine=_load_engine(config),
    )


def _update(config: pytest.Config, *, ci: bool) -> Update:
    everything, new = config.getoption("--baseline-update"), config.getoption("--baseline-update-new")
    if everything and new:
        raise pytest.UsageError("--baseline-update and --baseline-update-new exclude each other: give one of them")
    if not everything and not new:
        return Update.NOTHING
    update = Update.ALL if everything else Update.MISSING
    flag = update.option
    if ci and flag not in config.invocation_params.args:
        raise pytest.UsageError(
            f"{flag} came from addopts or PYTEST_ADDOPTS while CI is set; in CI baselines are written only when"
            f" {flag} is spelled out on the command line itself"
        )
    return update


def _against(config: pytest.Config) -> str | None:
    """The revision to compare with, as typed; git checks it when it is needed."""
    revision = _text(config, "against")
    if not revision and config.getoption("--against") is not None:
        raise pytest.UsageError("--against=: name a git revision, such as --against=origin/main or --against=HEAD~1")
    return revision or None


def _against_python(config: pytest.Config) -> str | None:
    """The interpreter to compare with, as an absolute path, after a trial."""
    name = _text(config, "against_python")
    typed = config.getoption("--against-python") is not None
    if not name and not typed:
        return None
    from pytest_gpuserve.builds.interpreter import find_python  # noqa: PLC0415 -- a project that measures nothing needs none

    try:
        return find_python(name, config.invocation_params.dir if typed else config.rootpath)
    except UsageProblem as problem:
        raise pytest.UsageError(str(problem)) from None


def _check_comparing(config: pytest.Config, update: Update) -> None:
    """Refuse settings that do not go together with a comparison side by side."""
    names = [name for name in ("against", "against_python") if _text(config, name)]
    flags = " and ".join(f"--{name.replace('_', '-')}" for name in names)
    if update is not Update.NOTHING:
        away = " ".join(f"-o {name}=" for name in names if config.getoption(f"--{name.replace('_', '-')}") is None)
        raise pytest.UsageError(
            f"{flags} and an update of baselines are two runs: a comparison with another revision records nothing;"
            " leave one of them out" + (f" (an ini setting is emptied with {away})" if away else "")
        )


def _load_engine(config: pytest.Config) -> str:
    """The load engines; a cluster is joined only when a test will measure."""
    typed = config.getoption(ENGINE_OPTION)
    text = str(config.getini("gpuserve_load_engine") if typed is None else typed).strip()
    if text == "local":
        return "local"
    from pytest_gpuserve.load.ray import check_engine  # noqa: PLC0415 -- of no use to most projects

    try:
        return check_engine(text, ENGINE_OPTION if typed is not None else "gpuserve_load_engine")
    except UsageProblem as problem:
        raise pytest.UsageError(str(problem)) from None


def _text(config: pytest.Config, name: str) -> str:
    """An option's value, else that of the ini setting with the same name."""
    value: Any = config.getoption(f"--{name.replace('_', '-')}", None)
    return str(config.getini(name) if value is None else value).strip()


def _folder(config: pytest.Config, name: str) -> Path | None:
    """A named folder, which need not exist yet; None if none is named."""
    text, flag = _text(config, name), f"--{name.replace('_', '-')}"
    if not text:
        return None
    # By convention, a path on the command line is relative to the working folder, and one in an ini file to that file.
    typed = config.getoption(flag) is not None
    place = config.invocation_params.dir if typed else config.rootpath
    folder = place / os.path.expanduser(text)  # noqa: PTH111 -- pathlib's raises for an unknown ~user
    # The functions of `os` also answer for folders that may not be listed.
    if os.path.exists(folder) and not os.path.isdir(folder):  # noqa: PTH110, PTH112
        raise pytest.UsageError(
            f"{flag}={text}: this is a file, not a folder\n  help: name a folder, which need not exist"
        )
    return folder


def _choice(config: pytest.Config, name: str, allowed: tuple[str, ...]) -> str:
    value = _text(config, name)
    if value not in allowed:
        raise pytest.UsageError(f"{name} = {value}: it must be one of {', '.join(word for word in allowed if word)}")
    return value


def _number(config: pytest.Config, name: str, default: float | None = None) -> float:
    text = _text(config, name)
    if default is not None and not text and config.getoption(f"--{name.replace('_', '-')}") is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise pytest.UsageError(f"{name} = {text}: it must be a number above 0")
    return value


def _sessions(config: pytest.Config) -> int | None:
    text = _text(config, "gpuserve_sessions")
    if not text:
        return None
    if not text.isdigit() or not 1 <= int(text) <= 20:
        raise pytest.UsageError(f"gpuserve_sessions = {text}: it must be a whole number from 1 to 20")
    return int(text)
