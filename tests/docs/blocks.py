"""Tables and signatures of the reference pages, made of the code.

``python -m cogapp -r -I . pytest_gpuserve/docs/reference/*.md`` renews the blocks between ``[[[cog`` and ``[[[end]]]``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pytest_gpuserve.fixture_types import Load, MakeDuel
from pytest_gpuserve.plugin import fixtures
from pytest_gpuserve.plugin.options import add_options
from pytest_gpuserve.plugin.server_factory import ServerFactory
from pytest_gpuserve.units import format_fraction
from pytest_gpuserve.verdict.metric import METRICS, OUTPUT_TOKENS

PLAIN = ("baseline", "device", "full_size", "artifacts")
"""Fixtures that are no functions."""

UNITS = {"1/s": "requests per second", "s": "seconds", "J": "joules", "B": "bytes", "": "a ratio"}


class IniOptions:
    """Stands for pytest's parser: keeps the ini settings that are declared."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, str]] = []

    def getgroup(self, *_: object, **__: object) -> IniOptions:
        """Return what takes the options of a group."""
        return self

    def addoption(self, *_: object, **__: object) -> None:
        """Options of the command line are no settings."""

    def addini(self, name: str, help: str, type: str = "string", default: object = "") -> None:  # noqa: A002
        """Keep a setting."""
        # The table has a column for the default, which `pytest --help` has in the text.
        meaning, _, told = help.removesuffix(")").partition(" (default: ")
        shown = told or ("" if type == "string" and not default else f"`{str(default).lower()}`")
        self.found.append((name, shown, meaning if told else help))


def metrics() -> str:
    """A table of all metrics."""
    lines = ["| metric | marker | unit | better | tolerance | usual |", "|---|---|---|---|---|---|"]
    for metric in METRICS.values():
        name = f"`run.{metric.name}`"
        better = "more" if metric.higher_is_better else "less"
        usual = "no" if metric.on_request else "yes"
        tolerance = format_fraction(metric.default_tolerance)
        unit = "tokens per second" if metric.name == OUTPUT_TOKENS else UNITS[metric.unit]
        lines.append(f"| {name} | `{metric.option}` | {unit} | {better} | {tolerance} | {usual} |")
    return "\n".join(lines)


def ini() -> str:
    """A table of all ini settings."""
    parser: Any = IniOptions()
    add_options(parser)
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {default} | {text} |" for name, default, text in parser.found]
    return "\n".join(lines)


def called() -> str:
    """The fixtures that tests call: signature and docstring."""
    shown: dict[str, Any] = {
        "load": Load.__call__,
        "duel": MakeDuel.__call__,
    }
    return "\n\n".join(_described(name, function) for name, function in shown.items())


def servers() -> str:
    """The fixtures that describe deployments."""
    factories: dict[str, Any] = {
        "mosec_server": ServerFactory.mosec,
        "litserve_server": ServerFactory.litserve,
        "pytriton_server": ServerFactory.pytriton,
        "triton_server": ServerFactory.triton,
        "torch_worker": ServerFactory.torch_worker,
        "command_server": ServerFactory.command,
        "remote_server": ServerFactory.remote,
        "gpuserve_servers.deploy": ServerFactory.deploy,
        "gpuserve_servers.app": ServerFactory.app,
    }
    assert all(hasattr(fixtures, name.partition(".")[0]) for name in factories)
    return "\n\n".join(_described(name, function) for name, function in factories.items())


def plain() -> str:
    """A table of the other fixtures."""
    lines = ["| fixture | meaning |", "|---|---|"]
    for name in PLAIN:
        text = (inspect.getdoc(getattr(fixtures, name)) or "").replace("``", "`")
        lines.append(f"| `{name}` | {text} |")
    return "\n".join(lines)


def _described(name: str, function: Callable[..., object]) -> str:
    signature = inspect.signature(function)
    arguments = [each for each in signature.parameters.values() if each.name != "self"]
    lines = [_argument(each) for each in arguments]
    keywords = [each.kind is each.KEYWORD_ONLY for each in arguments]
    if any(keywords):
        lines.insert(keywords.index(True), "    *,")
    # An error says itself what is wrong, so the pages do not list errors.
    text = (inspect.getdoc(function) or "").partition("\n\nRaises:")[0].replace("``", "`")
    code = ["```text", f"{name}(", *lines, f") -> {signature.return_annotation}", "```"]
    return "\n".join([f"## `{name}`", "", *code, "", *_sections(text)])


def _argument(parameter: inspect.Parameter) -> str:
    stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"    {stars}{parameter.name}: {parameter.annotation}{default},"


def _sections(docstring: str) -> list[str]:
    """A docstring in Google's style as Markdown: its arguments are a list."""
    lines: list[str] = []
    in_list = False
    for line in docstring.splitlines():
        if line == "Args:":
            in_list = True
            lines += ["Arguments:", ""]
        elif in_list and line.startswith("    ") and not line.startswith("     ") and ": " in line:
            name, _, text = line.strip().partition(": ")
            lines.append(f"- `{name}`: {text}")
        elif in_list and line.strip():
            lines.append(f"  {line.strip()}")
        else:
            in_list = in_list and bool(line.strip())
            lines.append(line)
    return lines
