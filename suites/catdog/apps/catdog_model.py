"""ConvNeXt with two labels in plain torch, and the classifier that runs it.

The modules have the names of ``transformers.ConvNextForImageClassification``, so a state dict of either fits the other.
An import of transformers would add several seconds to every start of a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

EPSILON = 1e-6
"""Epsilon of the normalisations inside the network."""

POOLED_EPSILON = 1e-12
"""Epsilon of the last normalisation, as in transformers."""


class ChannelNorm(nn.LayerNorm):
    """A layer normalisation over the channels of ``[N, C, H, W]``."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Normalise."""
        return super().forward(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """A depthwise 7x7 convolution and two linear layers with GELU between, scaled and added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.layernorm = nn.LayerNorm(width, eps=EPSILON)
        self.pwconv1 = nn.Linear(width, 4 * width)
        self.pwconv2 = nn.Linear(4 * width, width)
        # A network for training starts with 1e-6. A random one would then hardly depend on its blocks, and tests of its
        # answers would not notice a missing block.
        self.layer_scale_parameter = nn.Parameter(torch.ones(width))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the images of ``[N, C, H, W]``, changed a little."""
        inner = self.layernorm(self.dwconv(images).permute(0, 2, 3, 1))
        inner = self.layer_scale_parameter * self.pwconv2(nn.functional.gelu(self.pwconv1(inner)))
        return images + inner.permute(0, 3, 1, 2)


class Stage(nn.Module):
    """Blocks of one width, at half the resolution of the stage before."""

    def __init__(self, before: int, width: int, depth: int) -> None:
        super().__init__()
        halving = [] if before == width else [ChannelNorm(before, eps=EPSILON), nn.Conv2d(before, width, 2, stride=2)]
        self.downsampling_layer = nn.Sequential(*halving)
        self.layers = nn.Sequential(*(Block(width) for _ in range(depth)))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the images of ``[N, C, H, W]``, halved and changed."""
        return self.layers(self.downsampling_layer(images))


class ConvNext(nn.Module):
    """Liu and others, "A ConvNet for the 2020s" (2022): logits of ``[N, 3, H, W]`` images, ``[N, labels]``.

    Args:
        depths: Blocks of each stage.
        widths: Channels of each stage, increasing.
        labels: Labels.
    """

    def __init__(self, depths: Sequence[int], widths: Sequence[int], labels: int) -> None:
        super().__init__()
        stages = [
            Stage(before, width, depth)
            for before, width, depth in zip((widths[0], *widths[:-1]), widths, depths, strict=True)
        ]
        self.convnext = nn.ModuleDict(
            {
                "embeddings": nn.ModuleDict(
                    {
                        "patch_embeddings": nn.Conv2d(3, widths[0], 4, stride=4),
                        "layernorm": ChannelNorm(widths[0], eps=EPSILON),
                    }
                ),
                "encoder": nn.ModuleDict({"stages": nn.Sequential(*stages)}),
                "layernorm": nn.LayerNorm(widths[-1], eps=POOLED_EPSILON),
            }
        )
        self.classifier = nn.Linear(widths[-1], labels)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """The logits."""
        embeddings = self.convnext["embeddings"]
        images = embeddings["layernorm"](embeddings["patch_embeddings"](pixel_values))
        images = self.convnext["encoder"]["stages"](images)
        return self.classifier(self.convnext["layernorm"](images.mean((2, 3))))


def build_model(
    depths: Sequence[int], widths: Sequence[int], labels: int = 2, seed: int = 0, weights: Path | None = None
) -> ConvNext:
    """Build the network in eval mode, on torch's default device and in fp32.

    Args:
        depths: See ``ConvNext``.
        widths: See ``ConvNext``.
        labels: See ``ConvNext``.
        seed: Seed of the random weights. Equal seeds give equal weights in every process; torch's own random state does
            not change.
        weights: A state dict (``torch.save(model.state_dict(), FILE)``) instead of random weights.

    Raises:
        RuntimeError: The state dict does not fit the model.
    """
    # Weights are always drawn on the CPU: a CUDA generator gives other numbers for the same seed.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ConvNext(depths, widths, labels)
    model.eval()
    if weights is not None:
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return model


class Classifier:
    """The network on one device in one precision, from pictures to probabilities.

    Args:
        model: The network; it is moved and converted.
        precision: torch's name of the type of weights and activations, such as ``bfloat16``.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    """

    def __init__(self, model: ConvNext, *, precision: str, device: str) -> None:
        # Exact fp32: without this, GPUs since compute capability 8.0 do its convolutions in tf32.
        torch.backends.cudnn.allow_tf32 = False
        self.dtype: torch.dtype = getattr(torch, precision)
        self.device = torch.device(device)
        self.model = model.to(self.device, self.dtype)

    def logits(self, pixels: npt.NDArray[np.float32]) -> torch.Tensor:
        """Run one batch; returns before the GPU has finished.

        Args:
            pixels: Tensor of shape (pictures, 3, height, width).

        Returns:
            The logits on the device, of shape (pictures, labels).
        """
        with torch.inference_mode():
            return self.model(torch.from_numpy(pixels).to(self.device, self.dtype))

    def probabilities(self, pixels: npt.NDArray[np.float32]) -> list[list[float]]:
        """Classify one batch, and wait for it; a row for each picture, a probability for each label."""
        rows: list[list[float]] = self.logits(pixels).float().softmax(-1).tolist()
        return rows

    def effective(self) -> dict[str, str]:
        """Actual settings of the weights, which may differ from the requested ones."""
        parameter = next(self.model.parameters())
        return {"precision": str(parameter.dtype).removeprefix("torch."), "device": str(parameter.device)}
