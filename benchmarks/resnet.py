"""ResNet-18 and ResNet-50 in plain torch: a training step is measured without torchvision."""

from __future__ import annotations

import torch
from torch import nn

#: Blocks of each of the four stages, and whether they are bottlenecks.
_KINDS = {"resnet18": ((2, 2, 2, 2), False), "resnet50": ((3, 4, 6, 3), True)}

MODELS = tuple(_KINDS)


class _Block(nn.Module):
    """A residual block: two 3 x 3 convolutions, or the bottleneck 1 x 1, 3 x 3, 1 x 1."""

    def __init__(self, inside: int, planes: int, stride: int, deep: bool) -> None:
        super().__init__()
        outside = planes * (4 if deep else 1)
        if deep:
            self.conv1 = nn.Conv2d(inside, planes, 1, bias=False)
            self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
            self.conv3 = nn.Conv2d(planes, outside, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(outside)
        else:
            self.conv1 = nn.Conv2d(inside, planes, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.deep = deep
        self.downsample: nn.Module | None = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, C, H, W) to (N, C', H / stride, W / stride)."""
        past = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        if self.deep:
            x = self.bn3(self.conv3(self.relu(x)))
        x += past
        out: torch.Tensor = self.relu(x)
        return out


class ResNet(nn.Module):
    """A residual network (He et al., 2015), with the stride on the 3 x 3 as is usual now.

    Args:
        kind: One of `MODELS`.
        classes: Number of classes.
    """

    def __init__(self, kind: str, classes: int) -> None:
        super().__init__()
        width = 64
        counts, deep = _KINDS[kind]
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels, stages = width, []
        for stage, count in enumerate(counts):
            planes, blocks = width << stage, []
            for number in range(count):
                stride = 2 if stage and not number else 1
                blocks.append(_Block(channels, planes, stride, deep))
                channels = planes * (4 if deep else 1)
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits, (N, classes), of images, (N, 3, H, W), normalised."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: torch.Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits
