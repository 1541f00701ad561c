"""Small models for the torch worker, made by callables as users write them."""

from __future__ import annotations

import threading
import time

import torch

from pytest_gpuserve.servers.inside.torch_model import Execution


class Doubling(torch.nn.Module):
    """Doubles what it gets, after a known time; keeps count of its own executions and rows in a buffer."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds
        self.lock = threading.Lock()
        self.executions = 0
        self.rows = 0

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """The doubled input, and the count of executions and rows so far, and this one's rows, for each row."""
        if x.dim() == 1:
            raise RuntimeError("rows of nothing")
        if self.seconds:
            time.sleep(self.seconds)
        rows = x.shape[0]
        with self.lock:
            self.executions += 1
            self.rows += rows
            counts = torch.tensor([[self.executions, self.rows, rows]])
        return {"doubled": x * 2, "counts": counts.expand(rows, 3)}


class Meeting(torch.nn.Module):
    """Executions from the second one on wait for each other in pairs, and fail if they never meet; counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.barrier = threading.Barrier(2)
        self.executions = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the number of the execution for each row."""
        with self.lock:
            self.executions += 1
            count = self.executions
        if count > 1:
            self.barrier.wait(timeout=30)
        return torch.full((x.shape[0], 1), count)


def on_a_lost_device() -> torch.nn.Module:
    """See ``Doubling``; after an exception the device is found to be lost, as a GPU may be."""

    def check_device(_: Execution) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    Execution.check_device = check_device  # type: ignore[method-assign,assignment]
    return Doubling()


def doubling(seconds: float = 0.0) -> torch.nn.Module:
    """See ``Doubling``."""
    return Doubling(seconds)


def scores(classes: int = 5) -> torch.nn.Module:
    """Scores of ``[N, 3, H, W]`` images, ``[N, classes]``: with weights and buffers, of torch's own modules alone."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, classes),
    )


def no_module() -> int:
    """A mistake."""
    return 7


def raising() -> torch.nn.Module:
    """A mistake of another kind."""
    raise LookupError("no such configuration")
