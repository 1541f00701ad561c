"""A small real pytriton app for tests: it sleeps instead of inferring, counts for itself, and misbehaves on demand."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytriton_words  # type: ignore[import-not-found]  # a module beside the app, which only an app that is run as itself can import
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

if TYPE_CHECKING:
    from collections.abc import Callable


def options() -> argparse.Namespace:
    """The app's own arguments."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--work-ms", type=float, default=4.0, help="time of a batch")
    parser.add_argument("--max-batch-size", type=int, default=8)
    parser.add_argument("--max-queue-delay-us", type=int, default=2000)
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--count-in", type=Path, help="folder for the count that each instance keeps itself")
    parser.add_argument("--second", action="store_true", help="bind a second model, named other, which batches nothing")
    parser.add_argument("--own-places", action="store_true", help="ask for addresses, ports and a workspace of its own")
    parser.add_argument("--bad-model", action="store_true", help="the model cannot be made")
    parser.add_argument("--vertex", action="store_true", help="ask for an endpoint on all addresses")
    return parser.parse_args()


def instance_of(given: argparse.Namespace, name: str, *, batched: bool) -> Callable[..., Any]:
    """An instance of the model, which doubles ``X``."""
    count = None if given.count_in is None else (given.count_in / name).open("a", encoding="utf-8", buffering=1)

    def work(X: np.ndarray[Any, Any]) -> dict[str, Any]:  # noqa: N803 - pytriton passes tensors by name
        if (X == 666).any():
            raise ValueError("this number cannot be read")
        if count is not None:
            count.write(f"{len(X)}\n")
        time.sleep(given.work_ms / 1000)
        return {"Y": pytriton_words.doubled(X)}

    def alone(requests: list[Any]) -> list[dict[str, Any]]:
        return [{"Y": work(X=request["X"][None])["Y"][0]} for request in requests]

    return batch(work) if batched else alone


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
        if given.bad_model:
            raise RuntimeError("no weights here")
        for name, size in [("double", given.max_batch_size), *([("other", 0)] if given.second else [])]:
            functions = [instance_of(given, f"{name}-{number}", batched=size > 0) for number in range(given.instances)]
            triton.bind(
                model_name=name,
                infer_func=functions,
                inputs=[Tensor(name="X", dtype=np.float32, shape=(1,))],
                outputs=[Tensor(name="Y", dtype=np.float32, shape=(1,))],
                config=ModelConfig(
                    batching=size > 0,
                    max_batch_size=size,
                    batcher=DynamicBatcher(max_queue_delay_microseconds=given.max_queue_delay_us),
                ),
            )
        sys.stdout.write("bound\n")
        triton.serve()


if __name__ == "__main__":
    main()
