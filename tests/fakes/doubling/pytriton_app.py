"""Doubling behind pytriton."""

from typing import Any

import numpy as np
from doubling import MOST_AT_ONCE, WAIT_SECONDS, work
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton


@batch
def double(x: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Answer a batch."""
    work(len(x))
    return {"y": 2 * x}


if __name__ == "__main__":
    with Triton() as triton:
        triton.bind(
            model_name="doubling",
            infer_func=double,
            inputs=[Tensor(name="x", dtype=np.float32, shape=(1,))],
            outputs=[Tensor(name="y", dtype=np.float32, shape=(1,))],
            config=ModelConfig(
                max_batch_size=MOST_AT_ONCE,
                batcher=DynamicBatcher(max_queue_delay_microseconds=round(WAIT_SECONDS * 1e6)),
            ),
        )
        triton.serve()
