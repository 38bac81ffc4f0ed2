"""The networks by name. Importing this module does not import torch: requests are checked without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, DETECTION, SEGMENTATION, Task

if TYPE_CHECKING:
    import torch


Numbers = tuple[float, float, float]
Norms = Literal["batch", "layer", "group", "none"]


@dataclass(frozen=True)
class Input:
    """The input that a network expects; the default is the output of `predict.to_input`."""

    size: tuple[int, int] | None = None  # height and width for which papers state the operations; None: any
    mean: Numbers | None = None  # of channels from 0 to 1; None: no conversion
    deviation: Numbers = (1.0, 1.0, 1.0)
    fixed: bool = False  # whether frames of other sizes are resized

    def convert(self, images: torch.Tensor) -> torch.Tensor:
        """Convert the output of `predict.to_input` to the expected input."""
        import torch
        from torch.nn import functional as F

        if self.fixed and images.shape[-2:] != self.size:
            images = F.interpolate(images, size=self.size, mode="bilinear", align_corners=False)
        if self.mean is None:
            return images
        mean, deviation = (images.new_tensor(each)[:, None, None] for each in (self.mean, self.deviation))
        return (torch.add(0.5, images, alpha=0.25) - mean) / deviation  # from -2 .. 2 to 0 .. 1


@dataclass(frozen=True)
class PretrainingDefaults:
    """The default pre-training of a network, for experiments that set none."""

    steps: int
    rate: float
    batch: int


@dataclass(frozen=True)
class ZooEntry:
    """A network of the zoo: its task, blocks, input and default pre-training."""

    task: Task
    summary: str
    blocks: tuple[str, ...]  # in running order, without the head
    head: str = "head"  # last layer
    input: Input = Input()
    pretraining: PretrainingDefaults | None = None  # None: the experiment's settings for students
    norms: Norms = "batch"  # the kind of its norms
    linear_head: bool = True  # whether a classifier's last layer is linear


TRUNK = ("first", "deep")
FOUR_STAGES = ("stem", *(f"stages.{stage}" for stage in range(4)))
IMAGENET = Input((224, 224), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SMALL_PICTURES = Input((32, 32))
LARGE = PretrainingDefaults(steps=20_000, rate=0.001, batch=16)
STAGED = ("stem", "stages.0", "stages.1", "stages.2")
MOBILE = tuple(f"trunk.{part}" for part in (0, *range(2, 7)))
SHUFFLED = ("conv1", "stage2", "stage3", "stage4", "conv5")


def _torchvision(summary: str, blocks: Iterable[str], head: str, norms: Norms = "batch") -> ZooEntry:
    parts = tuple(f"network.{block}" for block in blocks)
    return ZooEntry(CLASSIFICATION, f"{summary}, from torchvision", parts, f"network.{head}", IMAGENET, LARGE, norms)


def _parts(name: str, count: int) -> list[str]:
    return [f"{name}.{number}" for number in range(count)]


OWN: Mapping[str, ZooEntry] = {
    "tiny": ZooEntry(SEGMENTATION, "student: four convolutions down to 1/4 of the resolution, 24 k parameters", TRUNK),
    "small": ZooEntry(SEGMENTATION, "tiny at 1.5 times the width, 53 k parameters", TRUNK),
    "half": ZooEntry(SEGMENTATION, "tiny at half the width, 6 k parameters", TRUNK),
    "teacher": ZooEntry(
        SEGMENTATION,
        "encoder-decoder with skip connections and frame context, 420 k parameters",
        ("stem", "quarter", "eighth", "up_quarter", "up_half"),
    ),
    "tiny_classifier": ZooEntry(CLASSIFICATION, "tiny with a class per frame, 24 k parameters", TRUNK),
    "half_classifier": ZooEntry(CLASSIFICATION, "tiny_classifier with half of the weights, 12 k parameters", TRUNK),
    "twice_classifier": ZooEntry(CLASSIFICATION, "tiny_classifier with twice the weights, 49 k parameters", TRUNK),
    "wide_classifier": ZooEntry(CLASSIFICATION, "tiny_classifier at 4 times the width, 370 k parameters", TRUNK),
    "tiny_residual": ZooEntry(
        CLASSIFICATION,
        "two residual blocks, 26 k parameters",
        ("first", "deep.0", "deep.1"),
    ),
    "wide_residual": ZooEntry(
        CLASSIFICATION, "tiny_residual at 4 times the width, 410 k parameters", ("first", "deep.0", "deep.1")
    ),
    "tiny_residual_gn": ZooEntry(
        CLASSIFICATION,
        "tiny_residual at width 16 with group norms of eight groups, 34 k parameters",
        ("first", "deep.0", "deep.1"),
        norms="group",
    ),
    "tiny_vit": ZooEntry(
        CLASSIFICATION,
        "transformer of four layers on patches of 4 x 4 pixels, with layer norms, 119 k parameters",
        ("network.conv_proj", *(f"network.encoder.layers.encoder_layer_{k}" for k in range(4)), "network.encoder.ln"),
        "network.heads.head",
        Input((32, 32), fixed=True),
        norms="layer",
    ),
    "deep_classifier": ZooEntry(
        CLASSIFICATION,
        "layout of VGG-16 at 1/8 of the width, 260 k parameters",
        tuple(f"stages.{stage}" for stage in range(5)),
    ),
    "tiny_staged": ZooEntry(
        CLASSIFICATION,
        "staged at half the width and resolution, 81 k parameters",
        FOUR_STAGES,
    ),
    "staged": ZooEntry(
        CLASSIFICATION, "four stages of two residual blocks for 32 x 32 images, 320 k parameters", FOUR_STAGES
    ),
    "tiny_mobile": ZooEntry(
        CLASSIFICATION, "five inverted residuals down to 1/4 of the resolution, 23 k parameters", MOBILE
    ),
    "tiny_mobile_segmenter": ZooEntry(SEGMENTATION, "tiny_mobile with a class per pixel, 23 k parameters", MOBILE),
    "tiny_mobile_detector": ZooEntry(
        DETECTION, "tiny_mobile with a centre-point detection head, 24 k parameters", MOBILE, "head.answer"
    ),
    "tiny_detector": ZooEntry(DETECTION, "tiny with a centre-point detection head, 38 k parameters", (*TRUNK, "neck")),
    "wide_detector": ZooEntry(DETECTION, "tiny_detector at 4 times the width, 370 k parameters", (*TRUNK, "neck")),
}
PUBLISHED: Mapping[str, ZooEntry] = {
    "deeplabv3_mobilenet": ZooEntry(
        SEGMENTATION,
        "DeepLabV3 on MobileNetV3-Large, from torchvision, 11 M parameters",
        (*(f"network.{part}" for part in _parts("backbone", 17)), *_parts("network.classifier", 3)),
        "network.classifier.4",
    ),
    "deeplabv3_mobilenet_v2": ZooEntry(
        SEGMENTATION,
        "DeepLabV3 on MobileNetV2 without ASPP, the student of AMS, 2.1 M parameters",
        ("stem", *_parts("stages", 7), "place", "frame", "join"),
        input=Input((513, 513)),
        pretraining=LARGE,
    ),
    "resnet56": ZooEntry(
        CLASSIFICATION,
        "ResNet-56 for 32 x 32 images, 0.85 M parameters",
        STAGED,
        input=SMALL_PICTURES,
        pretraining=LARGE,
    ),
    "vgg16_cifar": ZooEntry(
        CLASSIFICATION,
        "VGG-16 for 32 x 32 images, with one linear layer, 15 M parameters",
        tuple(f"stages.{stage}" for stage in range(5)),
        input=SMALL_PICTURES,
        pretraining=LARGE,
    ),
    "wrn_28_10": ZooEntry(
        CLASSIFICATION,
        "WRN-28-10 for 32 x 32 images, 36 M parameters",
        (*STAGED, "last"),
        input=SMALL_PICTURES,
        pretraining=LARGE,
    ),
    "resnext29": ZooEntry(
        CLASSIFICATION, "ResNeXt-29, 8 x 64d, for 32 x 32 images, 34 M parameters", STAGED, input=SMALL_PICTURES,
        pretraining=LARGE,
    ),
    "resnext29_2x64d": ZooEntry(
        CLASSIFICATION, "ResNeXt-29, 2 x 64d, for 32 x 32 images, 9 M parameters", STAGED, input=SMALL_PICTURES,
        pretraining=LARGE,
    ),
    "senet18": ZooEntry(
        CLASSIFICATION, "ResNet-18 with squeeze-and-excitation, 12 M parameters", (*STAGED, "stages.3"),
        input=Input((224, 224)), pretraining=LARGE,
    ),
    "resnet18_cbam": ZooEntry(
        CLASSIFICATION, "ResNet-18 with CBAM, 12 M parameters", (*STAGED, "stages.3"),
        input=Input((224, 224)), pretraining=LARGE,
    ),
    "yolov3": ZooEntry(
        DETECTION, "YOLOv3 with a centre-point output, 62 M parameters",
        ("stem", *_parts("stages", 5), "necks.0", "heads.0", "downs.0", "necks.1", "heads.1", "downs.1", "necks.2",
         "heads.2.0"),
        "heads.2.1", Input((416, 416)), LARGE,
    ),
    "yolov3_tiny": ZooEntry(
        DETECTION, "YOLOv3-tiny with a centre-point output, 9 M parameters",
        (*_parts("local", 5), "deep", "neck", "down", "coarse", "fine.0"), "fine.1", Input((416, 416)), LARGE,
    ),
    "resnet18": _torchvision("ResNet-18, 12 M parameters", ("conv1", "bn1", *(f"layer{k}" for k in range(1, 5))), "fc"),
    "resnet50": _torchvision("ResNet-50, 26 M parameters", ("conv1", "bn1", *(f"layer{k}" for k in range(1, 5))), "fc"),
    "vgg16": _torchvision(
        "VGG-16, 138 M parameters", ("features", "classifier.0", "classifier.3"), "classifier.6", "none"
    ),
    "mobilenet_v2": _torchvision("MobileNetV2, 3.5 M parameters", _parts("features", 19), "classifier.1"),
    "mobilenet_v3_small": _torchvision(
        "MobileNetV3-Small, 2.5 M parameters", (*_parts("features", 13), "classifier.0"), "classifier.3"
    ),
    "mobilenet_v3_large": _torchvision(
        "MobileNetV3-Large, 5.5 M parameters", (*_parts("features", 17), "classifier.0"), "classifier.3"
    ),
    "shufflenet_v2_x1_0": _torchvision("ShuffleNetV2, 2.3 M parameters", SHUFFLED, "fc"),
    "squeezenet1_1": replace(
        _torchvision("SqueezeNet 1.1, 1.2 M parameters", ("features",), "classifier.1", "none"), linear_head=False
    ),
    "vit_small": ZooEntry(
        CLASSIFICATION, "ViT-S/16, 22 M parameters",
        ("network.conv_proj", *(f"network.encoder.layers.encoder_layer_{k}" for k in range(12)), "network.encoder.ln"),
        "network.heads.head", Input((224, 224), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), fixed=True), LARGE, "layer",
    ),
}  # fmt: skip
ZOO: Mapping[str, ZooEntry] = {**OWN, **PUBLISHED}
