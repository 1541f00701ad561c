"""The published experiments: their text, and their code.

They are seven runs over six concurrencies each, on a T4 of a g4dn.xlarge (4 vCPUs). Text and code differ. "float16" is
``torch.bfloat16``. 4096 is 4026. The first server does not batch, although the text gives it 4096 and 0.01. "workers 0"
is one worker. ``as_published`` are the measured settings, ``as_stated`` those of the text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

BATCH_SIZES: Final = (1, 8, 32, 64, 128, 256)
"""Pictures in a batch of the model by itself."""

CONCURRENCIES: Final = (1, 8, 32, 64, 128, 256)
"""Users of the server."""


@dataclass(frozen=True)
class Settings:
    """Settings of a server.

    Args:
        precision: Value of ``--precision``.
        max_batch_size: Most requests in a batch; 1 disables batching.
        batch_timeout: Seconds for which a free worker that has a request waits for more.
        workers: Processes with a model of their own.
    """

    precision: str
    max_batch_size: int
    batch_timeout: float
    workers: int

    @property
    def batches(self) -> bool:
        """Whether requests are batched."""
        return self.max_batch_size > 1

    def arguments(self) -> dict[str, str | int | float]:
        """Arguments of the app for these settings."""
        return {
            "precision": self.precision,
            "max_batch_size": self.max_batch_size,
            "batch_timeout": self.batch_timeout,
            "workers_per_device": self.workers,
            # The published code did not check whether the GPU has units for bf16.
            **({"allow_emulated": True} if self.precision == "bf16" else {}),
        }

    def read_back(self) -> dict[str, str]:
        """LitServe's own report of these settings."""
        return {
            "max_batch_size": str(self.max_batch_size),
            "batch_timeout": f"{self.batch_timeout:g}",
            "workers": str(self.workers),
        }


VARIANTS: Final = {
    "baseline": Settings("fp32", 1, 0.0, 1),
    "batch_fullp_w0": Settings("fp32", 4026, 0.01, 1),
    "batch_fullp": Settings("fp32", 4026, 0.01, 4),
    "batch_halfp": Settings("bf16", 4026, 0.01, 4),
}
"""The four published server files (``server_NAME.py``) by the settings in their code."""


@dataclass(frozen=True)
class Experiment:
    """A published run.

    Args:
        name: Short name; the first experiment was run twice.
        number: Its number in the document.
        run: Number of the run.
        variant: Its server, a key of `VARIANTS`.
        requests: Total requests at each concurrency. As many as users are a single wave.
        as_published: Settings of the code.
        as_stated: Settings of the text.
    """

    name: str
    number: int
    run: int
    variant: str
    requests: int
    as_published: Settings
    as_stated: Settings


FULL_BATCHED: Final = VARIANTS["batch_fullp_w0"]
HALF: Final = VARIANTS["batch_halfp"]
STATED: Final = Settings("fp32", 4096, 0.01, 1)
STATED_HALF: Final = Settings("fp16", 4096, 0.01, 4)

EXPERIMENTS: Final = {
    experiment.name: experiment
    for experiment in (
        Experiment("1a", 1, 1, "baseline", 128, VARIANTS["baseline"], STATED),
        Experiment("1b", 1, 2, "baseline", 256, VARIANTS["baseline"], STATED),
        Experiment("2", 2, 1, "batch_fullp_w0", 256, FULL_BATCHED, STATED),
        Experiment("3", 3, 1, "batch_fullp", 256, VARIANTS["batch_fullp"], replace(STATED, workers=4)),
        Experiment("4", 4, 1, "batch_halfp", 256, HALF, STATED_HALF),
        Experiment(
            "5", 5, 1, "batch_halfp", 256, replace(HALF, batch_timeout=0.05), replace(STATED_HALF, batch_timeout=0.05)
        ),
        Experiment(
            "6",
            6,
            1,
            "batch_halfp",
            256,
            replace(HALF, max_batch_size=256, batch_timeout=0.05),
            replace(STATED_HALF, max_batch_size=256, batch_timeout=0.05),
        ),
    )
}
"""By name, in the document's order."""
