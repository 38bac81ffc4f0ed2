"""Light networks for small frames: published architectures at widths for small devices.

Each has a trunk with feature maps at 1/8 of the resolution and a head for its task: average pooling and a linear layer
for frames, a 1x1 convolution for places. The blocks are those of the papers; depths and widths are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional as F

from driftlab.platform.networks.box_head import BoxHead, BoxOutput, count_finer
from driftlab.platform.networks.published.residual import BasicBlock, SqueezeExcite, conv_norm
from driftlab.platform.networks.resizing import resize
from driftlab.platform.networks.tasks.boxes import SIDES

WIDTH = 16  # channels of the stem
Trunk = tuple[nn.Module, int]  # module and number of output channels


class Inverted(nn.Module):
    """Inverted residual of MobileNetV3.

    It expands, convolves depthwise, optionally squeezes and excites, and projects.
    """

    def __init__(self, inputs: int, middle: int, outputs: int, stride: int, *, gate: bool, hard: bool) -> None:
        super().__init__()
        act: Callable[[], nn.Module] = nn.Hardswish if hard else nn.ReLU
        deep = [conv_norm(middle, middle, 3, stride, middle), act(), *([SqueezeExcite(middle)] if gate else [])]
        self.inner = nn.Sequential(conv_norm(inputs, middle, 1), act(), *deep, conv_norm(middle, outputs, 1))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.inner(x)
        return x + inner if self.adds else inner


class ShuffleUnit(nn.Module):
    """Unit of ShuffleNetV2: half of the channels pass unchanged; with a stride, both halves are convolved."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half, self.splits = outputs // 2, stride == 1 and inputs == outputs
        deep_inputs = half if self.splits else inputs
        self.deep = nn.Sequential(
            conv_norm(deep_inputs, half, 1), nn.ReLU(), conv_norm(half, half, 3, stride, half),
            conv_norm(half, half, 1), nn.ReLU(),
        )  # fmt: skip
        passing = [conv_norm(inputs, inputs, 3, stride, inputs), conv_norm(inputs, half, 1), nn.ReLU()]
        self.passing = nn.Identity() if self.splits else nn.Sequential(*passing)
        self.mix = nn.ChannelShuffle(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=1) if self.splits else (x, x)
        mixed: torch.Tensor = self.mix(torch.cat([self.passing(first), self.deep(second)], dim=1))
        return mixed


class Fire(nn.Module):
    """Fire module of SqueezeNet: a narrow 1x1 convolution, then 1x1 and 3x3 convolutions in parallel."""

    def __init__(self, inputs: int, narrow: int, outputs: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(conv_norm(inputs, narrow, 1), nn.ReLU())
        self.small, self.large = conv_norm(narrow, outputs // 2, 1), conv_norm(narrow, outputs // 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrow = self.squeeze(x)
        return F.relu(torch.cat([self.small(narrow), self.large(narrow)], dim=1))


class PatchEncoder(nn.Module):
    """Transformer encoder on image patches; a depthwise convolution encodes their positions."""

    def __init__(self, side: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, side, side)
        self.places = nn.Conv2d(width, width, 3, padding=1, groups=width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.cut(x)
        patches = patches + self.places(patches)
        encoded: torch.Tensor = self.layers(patches.flatten(2).transpose(1, 2))
        return encoded.transpose(1, 2).reshape(patches.shape)


def _stem(width: int = WIDTH, stride: int = 2) -> list[nn.Module]:
    return [conv_norm(3, width, 3, stride), nn.ReLU()]


def _mobile(rows: tuple[tuple[int, int, int, bool, bool], ...]) -> Trunk:
    """Stack inverted residuals; rows of expansion, channels, stride, squeeze-and-excitation, hard swish."""
    parts, inputs = _stem(), WIDTH
    for expansion, outputs, stride, gate, hard in rows:
        parts.append(Inverted(inputs, expansion * inputs, outputs, stride, gate=gate, hard=hard))
        inputs = outputs
    return nn.Sequential(*parts), inputs


def _mobile_small() -> Trunk:
    return _mobile(((1, 16, 1, True, False), (3, 24, 2, False, False), (3, 24, 1, False, False),
                    (3, 40, 2, True, True), (4, 40, 1, True, True)))  # fmt: skip


def _mobile_large() -> Trunk:
    return _mobile(((1, 16, 1, False, False), (4, 24, 2, False, False), (3, 24, 1, False, False),
                    (3, 40, 1, True, False), (3, 40, 1, True, False), (6, 56, 2, False, True),
                    (3, 56, 1, False, True), (6, 64, 1, True, True)))  # fmt: skip


def _shuffle() -> Trunk:
    rows = ((WIDTH, 48, 2), (48, 48, 1), (48, 96, 2), (96, 96, 1), (96, 96, 1))
    return nn.Sequential(*_stem(), *(ShuffleUnit(*row) for row in rows), conv_norm(96, 128, 1), nn.ReLU()), 128


def _squeeze() -> Trunk:
    pool = nn.MaxPool2d(3, 2, padding=1)
    fires = Fire(WIDTH, 8, 32), Fire(32, 8, 32), Fire(32, 16, 64), Fire(64, 16, 64), Fire(64, 24, 96)
    return nn.Sequential(*_stem(), *fires[:1], pool, *fires[1:4], pool, *fires[4:]), 96


def _residual() -> Trunk:
    """Return eight residual blocks in four stages, as in ResNet-18 at 1/8 of its width."""
    widths = ((WIDTH, 8, 1), (8, 16, 2), (16, 24, 1), (24, 48, 2))
    stages = (BasicBlock(*shape) for inputs, outputs, stride in widths
              for shape in ((inputs, outputs, stride), (outputs, outputs, 1)))  # fmt: skip
    return nn.Sequential(*_stem(), *stages), 48


def _transformer() -> Trunk:
    return PatchEncoder(4, 32, 4, 2), 32


TRUNKS: Mapping[str, Callable[[], Trunk]] = {
    "mobilenet_v3_small": _mobile_small,
    "mobilenet_v3_large": _mobile_large,
    "shufflenet": _shuffle,
    "squeezenet": _squeeze,
    "resnet18": _residual,
    "transformer": _transformer,
}


class LightNetwork(nn.Module):
    """A trunk with a head for classification, or with `pixels` for segmentation."""

    def __init__(self, trunk: Trunk, outputs: int, *, pixels: bool) -> None:
        super().__init__()
        self.trunk, channels = trunk
        self.pixels = pixels
        self.head = nn.Conv2d(channels, outputs, 1) if pixels else nn.Linear(channels, outputs)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.trunk(images)
        if self.pixels:
            return resize(self.head(features), images)
        logits: torch.Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


class LightDetector(nn.Module, BoxOutput):
    """A trunk with a box head, in the grid of all detectors."""

    def __init__(self, trunk: Trunk, classes: int, finer: int) -> None:
        super().__init__()
        self.trunk, channels = trunk
        self.head = BoxHead(channels, classes + SIDES, finer)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.trunk(images), images)
        return output


def _mobile_tiny() -> Trunk:
    """Return five inverted residuals down to 1/4 of the resolution: maps and boxes need finer features."""
    return _mobile(((1, 16, 1, True, False), (3, 24, 2, False, False), (3, 24, 1, False, False),
                    (3, 32, 1, True, True), (3, 32, 1, True, True)))  # fmt: skip


def mobile_classifier(classes: int) -> LightNetwork:
    return LightNetwork(_mobile_tiny(), classes, pixels=False)


def mobile_segmenter(classes: int) -> LightNetwork:
    return LightNetwork(_mobile_tiny(), classes, pixels=True)


def mobile_detector(classes: int) -> LightDetector:
    return LightDetector(_mobile_tiny(), classes, 2)


def build_like(name: str, model: nn.Module, images: torch.Tensor) -> LightNetwork | LightDetector:
    """Build a light network with outputs of a model's shape, on the device of its images."""
    trunk = TRUNKS[name]()
    with torch.no_grad():
        outputs, *places = model(images).shape[1:]
        if isinstance(model, BoxOutput):
            features = trunk[0].eval()(images.cpu())
            return (
                LightDetector(trunk, outputs - SIDES, count_finer(places[0], features.shape[-2]))
                .eval()
                .to(images.device)
            )
    return LightNetwork(trunk, outputs, pixels=bool(places)).eval().to(images.device)
