"""ResNet-18 as a callable that returns the module: ``torch_worker("apps/resnet.py:resnet18", compile=True)``.

He et al., "Deep Residual Learning for Image Recognition" (https://arxiv.org/abs/1512.03385), with basic blocks [2, 2,
2, 2]. Modules have torchvision's names, so that its checkpoint, ``resnet18-f37072fd.pth``, is a state dict of this
model. torchvision itself is not needed; its import takes as long as the model's start.

The published worker decided by itself whether the model is compiled, its device, its threads and its weights. Here
these are arguments of ``torch_worker``. The published script read ``--compile`` by ``type=bool``, for which any
nonempty text is true, even ``False``. So all of its rows "without" ``torch.compile`` were compiled. Here ``compile=``
must be a bool, and the worker reports what dynamo really compiled.
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
    """Build the model with its initial weights, which come from the caller's seed.

    Args:
        width: Channels of the first stage; fewer make a smaller model of the same architecture.
        classes: Outputs of a row.
        tf32: Whether a GPU may round the factors of convolutions to TF32, torch's default. Without it results agree
            with a CPU's to 1e-4. It is a switch of the whole process.
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
    """Two convolutions of 3 x 3, with their input added to their output."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        # If the shape changes, the added input has to change with it.
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
