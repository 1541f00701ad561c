"""The servers of language models, and what they are asked."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.experiment.handle import ServerHandle


@pytest.fixture(scope="session")
def llamacpp(command_server: Callable[..., ServerHandle]) -> Callable[..., ServerHandle]:
    """Maker of llama.cpp's deployments, with arguments of its app; skips where it is not installed."""
    missing = [name for name in ("xllamacpp", "gguf") if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; pip install 'pytest-gpuserve[suites]'")

    def make(*arguments: str) -> ServerHandle:
        command = ["{python}", "apps/llamacpp.py", "--port={port}", "--folder={folder}", *arguments]
        return command_server(command, counters="llama.cpp")

    return make
