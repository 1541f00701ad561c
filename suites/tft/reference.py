"""The right answers, computed in-process by the network that the servers of this suite serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suites.tft.apps.tft.contract import INPUTS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from suites.tft.apps.tft.data import Examples


def forecasts(dataset: str, examples: Examples, *, size: str) -> NDArray[np.float32]:
    """Forecast examples one at a time, without batching and without a server.

    Always on the CPU and in fp32, because a second process on the GPU would disturb the measurement.

    Args:
        dataset: Data set of the server's model.
        examples: Inputs of the requests.
        size: Value of the server's ``TFT_SIZE``.

    Returns:
        Standardised forecasts, (examples, 24, 3).
    """
    import numpy as np  # noqa: PLC0415 -- what collects tests does not wait for torch

    from suites.tft.apps.tft.serving import Forecaster, Options  # noqa: PLC0415 -- as above

    forecaster = Forecaster(Options(dataset, size=size), device="cpu")
    rows = ([examples.inputs[spec.name][row : row + 1] for spec in INPUTS] for row in range(len(examples)))
    return np.concatenate([forecaster.forecast([row])[0] for row in rows])
