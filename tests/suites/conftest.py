"""What tests of the suites' models share."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small matrices on a busy machine: several threads would mostly wait for each other."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def digest() -> Callable[[Any], str]:
    """What tells the weights of a module from all others."""

    def of(module: Any) -> str:  # noqa: ANN401 -- torch has no types
        found = hashlib.sha256()
        for name, tensor in sorted(module.state_dict().items()):
            found.update(name.encode() + tensor.numpy().tobytes())
        return found.hexdigest()

    return of
