"""The ConvNeXt-tiny architecture in plain torch, as a user's model file has it.

Liu and others, "A ConvNet for the 2020s" (2022), table 9: depths 3, 3, 9, 3 and widths 96, 192, 384, 768.
"""

from __future__ import annotations

import torch

DEPTHS = (3, 3, 9, 3)
WIDTHS = (96, 192, 384, 768)


class ChannelNorm(torch.nn.LayerNorm):
    """A layer normalisation over the channels of ``[N, C, H, W]``."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Normalise."""
        return super().forward(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(torch.nn.Module):
    """A depthwise 7x7 convolution and two linear layers with GELU between, scaled and added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = torch.nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = torch.nn.LayerNorm(width)
        self.widen = torch.nn.Linear(width, 4 * width)
        self.narrow = torch.nn.Linear(4 * width, width)
        self.scale = torch.nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The images of ``[N, C, H, W]``, changed a little."""
        inner = self.norm(self.depthwise(images).permute(0, 2, 3, 1))
        inner = self.scale * self.narrow(torch.nn.functional.gelu(self.widen(inner)))
        return images + inner.permute(0, 3, 1, 2)


class ConvNextTiny(torch.nn.Module):
    """Scores of ``[N, 3, H, W]`` images, ``[N, labels]``."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = [torch.nn.Conv2d(3, WIDTHS[0], 4, stride=4), ChannelNorm(WIDTHS[0])]
        before = WIDTHS[0]
        for depth, width in zip(DEPTHS, WIDTHS, strict=True):
            if width != before:
                layers += [ChannelNorm(before), torch.nn.Conv2d(before, width, 2, stride=2)]
            layers += [Block(width) for _ in range(depth)]
            before = width
        self.stages = torch.nn.Sequential(*layers)
        self.norm = torch.nn.LayerNorm(before)
        self.head = torch.nn.Linear(before, labels)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """The scores."""
        return self.head(self.norm(self.stages(pixel_values).mean((2, 3))))


def build(labels: int = 1000) -> torch.nn.Module:
    """The model of ImageNet, or with other labels."""
    return ConvNextTiny(labels)
