"""Inputs and outputs of the Temporal Fusion Transformer: the two data sets, and the tensors of a request.

Server, exporter and clients share this file, which imports nothing. The contract is that of the published Triton
models. It has eight inputs by position, four of them placeholders of one number ("absent").
"""

from __future__ import annotations

from dataclasses import dataclass

EXAMPLE_LENGTH = 192
"""Hours of an example: seven days that are known, and the day that is forecast."""

ENCODER_LENGTH = 168
"""Hours of history; what follows is the horizon."""

HORIZON = EXAMPLE_LENGTH - ENCODER_LENGTH

QUANTILES = (0.1, 0.5, 0.9)

MAX_BATCH_SIZE = 1024

PREFERRED_BATCH_SIZES = (512, 1024)

MAX_QUEUE_DELAY_US = 1

INSTANCES = 2


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of a request or an answer.

    Args:
        name: Its name in Triton: the network's name for it and its position.
        datatype: KServe v2's name of its type.
        shape: Shape of one example, without the batch.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Numbers of one example."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    @property
    def bytes(self) -> int:
        """Bytes of one example."""
        return self.size * ITEM_BYTES[self.datatype]

    @property
    def present(self) -> bool:
        """Whether these data sets have it; a placeholder has one number instead of one for each hour."""
        return self.shape[0] != 1


ITEM_BYTES = {"INT64": 8, "FP32": 4}

# The placeholders are FP32 although two of them would be categories: that is how the published exporter declared them.
INPUTS = (
    TensorSpec("s_cat__0", "INT64", (EXAMPLE_LENGTH, 1)),
    TensorSpec("s_cont__1", "FP32", (1,)),
    TensorSpec("k_cat__2", "FP32", (1,)),
    TensorSpec("k_cont__3", "FP32", (EXAMPLE_LENGTH, 3)),
    TensorSpec("o_cat__4", "FP32", (1,)),
    TensorSpec("o_cont__5", "FP32", (1,)),
    TensorSpec("target__6", "FP32", (EXAMPLE_LENGTH, 1)),
    TensorSpec("id__7", "INT64", (EXAMPLE_LENGTH, 1)),
)
"""Inputs in the network's order; 6160 bytes an example."""

OUTPUT = TensorSpec("target__0", "FP32", (HORIZON, len(QUANTILES)))
"""Each hour of the horizon by each of `QUANTILES`."""


@dataclass(frozen=True)
class Dataset:
    """A data set: hourly series of many meters or sensors, each with its own scale.

    Args:
        name: Its name.
        series: Number of series: the cardinality of the static category.
        known: Variables of every hour that are known in advance, in order.
        target: The forecast variable.
        dropout: Dropout in training.
    """

    name: str
    series: int
    known: tuple[str, ...]
    target: str
    dropout: float


DATASETS = {
    found.name: found
    for found in (
        Dataset("electricity", 369, ("hour", "day_of_week", "hours_from_start"), "power_usage", 0.1),
        Dataset("traffic", 963, ("time_on_day", "day_of_week", "hours_from_start"), "values", 0.3),
    )
}
"""By name: the UCI electricity load diagrams, and the PEMS San Francisco traffic."""


def model_name(dataset: str) -> str:
    """Name the model of a data set in the repository: ``tft_electricity``, ``tft_traffic``."""
    return f"tft_{dataset}"
