"""Doubling behind pytriton; by its options it misbehaves."""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from doubling import MOST_AT_ONCE, WAIT_SECONDS, work
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def options() -> argparse.Namespace:
    """The app's own arguments."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--max-batch-size", type=int, default=MOST_AT_ONCE)
    parser.add_argument("--max-queue-delay-us", type=int, default=round(WAIT_SECONDS * 1e6))
    parser.add_argument("--second", action="store_true", help="bind a second model, named other, which batches nothing")
    parser.add_argument("--own-places", action="store_true", help="ask for addresses, ports and a workspace of its own")
    parser.add_argument("--vertex", action="store_true", help="ask for an endpoint on all addresses")
    return parser.parse_args()


def double(x: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Answer a batch."""
    work(len(x))
    return {"y": 2 * x}


def double_each(requests: list[Any]) -> list[dict[str, Any]]:
    """Answer requests one after the other."""
    return [{"y": double(request["x"][None])["y"][0]} for request in requests]


def main() -> None:
    """Serve."""
    given = options()
    places: dict[str, Any] = {}
    if given.own_places:
        places["config"] = TritonConfig(http_address="0.0.0.0", http_port=8000, allow_metrics=False)
        places["workspace"] = Path(__file__).with_name("workspace")
    if given.vertex:
        places["config"] = TritonConfig(allow_vertex_ai=True)
    with Triton(**places) as triton:
        batcher = DynamicBatcher(max_queue_delay_microseconds=given.max_queue_delay_us)
        batched = ModelConfig(max_batch_size=given.max_batch_size, batcher=batcher)
        models = {"doubling": (batch(double), batched), "other": (double_each, ModelConfig(batching=False))}
        for name, (function, config) in models.items():
            if name == "doubling" or given.second:
                triton.bind(
                    model_name=name,
                    infer_func=function,
                    inputs=[Tensor(name="x", dtype=np.float32, shape=(1,))],
                    outputs=[Tensor(name="y", dtype=np.float32, shape=(1,))],
                    config=config,
                )
        sys.stdout.write("bound\n")
        triton.serve()


if __name__ == "__main__":
    main()
