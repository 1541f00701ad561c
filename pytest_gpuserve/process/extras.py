"""Optional libraries of this package's extras, imported when needed."""

from __future__ import annotations

import importlib
from typing import Any

from pytest_gpuserve.errors import UsageProblem


def import_extra(module: str, what: str, extra: str = "triton") -> Any:  # noqa: ANN401 -- a module, whose names a checker cannot know
    """Import a module.

    Args:
        module: Name of the module.
        what: The feature that needs it, for the message.
        extra: The extra that installs it.

    Raises:
        UsageProblem: The module is missing, or does not work with other installed packages.
    """
    try:
        return importlib.import_module(module)
    except Exception as problem:
        # tritonclient raises RuntimeError for a missing grpcio, protobuf errors of its own for a wrong version.
        raise UsageProblem(
            f"{what} needs {module.partition('.')[0]}",
            found=f"{type(problem).__name__}: {problem}",
            remedies=[f"pip install 'pytest-gpuserve[{extra}]'"],
        ) from problem
