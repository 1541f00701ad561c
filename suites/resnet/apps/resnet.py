"""ResNet-18 as a callable that returns the module: ``torch_worker("apps/resnet.py:resnet18", compile=True)``.

He et al., "Deep Residual Learning for Image Recognition" (https://arxiv.org/abs/1512.03385), with basic blocks
[2, 2, 2, 2]. Modules are named as in torchvision, so that its checkpoint, ``resnet18-f37072fd.pth``, is a state dict of
this model; torchvision itself is not needed, whose import takes as long as the model's start.

What the published worker did by itself its caller says now, by arguments of ``torch_worker``: whether the model is
compiled, where it lies, how many threads execute it, where its weights are. The published script read
``--compile`` by ``type=bool``, for which any text that is not empty is true, ``False`` too: all of its rows "without"
``torch.compile`` were compiled. ``compile=`` here is a truth value and nothing else, and what dynamo really compiled
can be read back from the worker.
"""

from __future__ import annotations

import torch
from torch import nn

BLOCKS = (2, 2, 2, 2)
"""Basic blocks of each of the four stages; each stage after the first has half the size and twice the channels."""

WIDTH = 64
"""Channels of the first stage as published: 11 689 512 parameters with `CLASSES`."""

CLASSES = 1000


def resnet18(*, width: int = WIDTH, classes: int = CLASSES, tf32: bool = True) -> ResNet:
    """Build the model with the weights that it gives itself; the caller's seed makes them.

    Args:
        width: Channels of the first stage; fewer make a smaller model of the same architecture.
        classes: Outputs of a row.
        tf32: Whether a GPU may round the factors of convolutions to TF32, as torch does of its own accord where it
            can; without it results agree with a CPU's to 1e-4. It is a switch of the whole process.
    """
    torch.backends.cudnn.allow_tf32 = tf32
    return ResNet(width, classes)


class ResNet(nn.Module):
    """Images to scores, fp32.

    Args:
        width: Channels of the first stage.
        classes: Outputs of a row.
    """

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(width, width, BLOCKS[0], stride=1)
        self.layer2 = _stage(width, 2 * width, BLOCKS[1], stride=2)
        self.layer3 = _stage(2 * width, 4 * width, BLOCKS[2], stride=2)
        self.layer4 = _stage(4 * width, 8 * width, BLOCKS[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Score images of shape (batch, 3, height, width) for each class: shape (batch, classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class BasicBlock(nn.Module):
    """Two convolutions of 3 x 3, and what came in added to what comes out."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        # Where the shape changes, what is added has to change with it.
        self.downsample = (
            None
            if stride == 1 and channels_in == channels
            else nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape (batch, channels_in, h, w) to (batch, channels, h / stride, w / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + shortcut)


def _stage(channels_in: int, channels: int, blocks: int, *, stride: int) -> nn.Sequential:
    first = BasicBlock(channels_in, channels, stride)
    return nn.Sequential(first, *(BasicBlock(channels, channels, 1) for _ in range(blocks - 1)))
