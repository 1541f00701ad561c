"""The right answers, by a direct call of the model in this process, and what else needs no server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from suites.resnet.apps.resnet import WIDTH, resnet18

if TYPE_CHECKING:
    from pathlib import Path

    from suites.resnet.apps.resnet import ResNet

    Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


@dataclass(frozen=True)
class Size:
    """Sizes of the model and its images.

    Args:
        width: Channels of the first stage.
        pixels: Height and width of an image.
    """

    width: int
    pixels: int


FULL = Size(width=WIDTH, pixels=250)
"""As published: 4.687 GFLOP an image."""

SMALL = Size(width=16, pixels=32)
"""An 810th of its operations: an image takes a few milliseconds of one core."""


def images(size: Size, batch: int, *, seed: int = 0) -> Array:
    """Draw a batch of shape (batch, 3, pixels, pixels), as the benchmark does: noise from a standard normal."""
    shape = (batch, 3, size.pixels, size.pixels)
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def build(size: Size, *, seed: int = 0) -> ResNet:
    """Build the model that a worker with this seed builds, in eval mode; torch's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: ResNet = resnet18(width=size.width).eval()
    return model


def scores(model: ResNet, batch: Array) -> Array:
    """Call the model directly, always on the CPU: scores of shape (batch, classes)."""
    with torch.no_grad():
        found: Array = model(torch.from_numpy(batch)).numpy()
    return found


def write_trace(model: ResNet, batch: Array, path: Path) -> None:
    """Profile a direct call, and write what ran when as a Chrome trace (chrome://tracing, https://ui.perfetto.dev).

    The first call, in which torch chooses its kernels, is left out. The profile covers only the CPU, because a look at
    a GPU would leave this process a context on it, which takes memory.
    """
    tensor = torch.from_numpy(batch)
    with torch.no_grad():
        model(tensor)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
            model(tensor)
    path.parent.mkdir(parents=True, exist_ok=True)
    profile.export_chrome_trace(str(path))
