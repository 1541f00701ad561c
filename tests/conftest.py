"""What needs minutes or a card runs only when it is asked for by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

BY_NAME = ("slow", "gpu")


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Skip what `-m` does not name."""
    asked = config.getoption("-m", default="")
    for item in items:
        for marker in BY_NAME:
            if item.get_closest_marker(marker) and marker not in asked:
                item.add_marker(pytest.mark.skip(reason=f"runs by name: -m {marker}"))
