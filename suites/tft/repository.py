"""The configurations of the suite's Triton models, as typed arguments; ``config.pbtxt`` is what they write.

``python -m suites.tft.repository`` writes them anew after a change.
"""

from __future__ import annotations

from pathlib import Path

from pytest_gpuserve.servers.triton_config import (
    CONFIG_FILE,
    DynamicBatching,
    InstanceGroup,
    ModelConfig,
    Tensor,
)
from suites.tft.apps.tft.contract import (
    DATASETS,
    INPUTS,
    INSTANCES,
    MAX_BATCH_SIZE,
    MAX_QUEUE_DELAY_US,
    OUTPUT,
    PREFERRED_BATCH_SIZES,
    TensorSpec,
)

MODELS = Path(__file__).parent / "apps" / "models"
"""The model repository."""


def config(dataset: str) -> ModelConfig:
    """Make the configuration of a data set's model, ``tft_electricity`` or ``tft_traffic``.

    ``KIND_MODEL`` leaves the device to the model, which takes a card where there is one: so one file serves both.
    """
    return ModelConfig(
        f"tft_{dataset}",
        inputs=tuple(map(_tensor, INPUTS)),
        outputs=(_tensor(OUTPUT),),
        max_batch_size=MAX_BATCH_SIZE,
        dynamic_batching=DynamicBatching(PREFERRED_BATCH_SIZES, MAX_QUEUE_DELAY_US),
        instances=(InstanceGroup("MODEL", INSTANCES),),
        parameters={"dataset": dataset},
    )


def write() -> None:
    """Write the configurations into the repository."""
    for dataset in DATASETS:
        found = config(dataset)
        (MODELS / found.name / CONFIG_FILE).write_text(found.to_pbtxt(), encoding="utf-8")


def _tensor(spec: TensorSpec) -> Tensor:
    return Tensor(spec.name, spec.datatype, spec.shape)


if __name__ == "__main__":
    write()
