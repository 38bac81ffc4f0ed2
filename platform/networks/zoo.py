"""The networks by name. Importing this module does not import torch, so that a request can be checked first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftlab.errors import unknown_name
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, DETECTION, SEGMENTATION, Task

if TYPE_CHECKING:
    import torch


Numbers = tuple[float, float, float]


@dataclass(frozen=True)
class Input:
    """The pictures that a network expects; by default those that the lab hands to every network."""

    size: tuple[int, int] | None = None  # height and width at which papers tell its operations; None: any
    mean: Numbers | None = None  # of channels from 0 to 1; None: the lab's
    deviation: Numbers = (1.0, 1.0, 1.0)
    fixed: bool = False  # whether pictures of other sizes are resized

    def convert(self, images: torch.Tensor) -> torch.Tensor:
        """Bring the lab's input to what the network expects."""
        import torch
        from torch.nn import functional as F

        if self.fixed and images.shape[-2:] != self.size:
            images = F.interpolate(images, size=self.size, mode="bilinear", align_corners=False)
        if self.mean is None:
            return images
        mean, deviation = (images.new_tensor(each)[:, None, None] for each in (self.mean, self.deviation))
        return (torch.add(0.5, images, alpha=0.25) - mean) / deviation  # from -2 .. 2 to 0 .. 1


@dataclass(frozen=True)
class UsualTraining:
    """How a network is usually trained: where an experiment says nothing else, so is this one."""

    steps: int
    rate: float
    batch: int


@dataclass(frozen=True)
class ZooEntry:
    """A network of the zoo: its task, its parts and what it needs."""

    task: Task
    summary: str
    blocks: tuple[str, ...]  # its parts in running order, but for the head
    head: str = "head"  # its last layer
    input: Input = Input()
    course: UsualTraining | None = None  # None: the one that an experiment has for students


TRUNK = ("first", "deep")
FOUR_STAGES = ("stem", *(f"stages.{stage}" for stage in range(4)))
IMAGENET = Input((224, 224), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SMALL_PICTURES = Input((32, 32))
LARGE = UsualTraining(steps=20_000, rate=0.001, batch=16)
STAGED = ("stem", "stages.0", "stages.1", "stages.2")
MOBILE = tuple(f"trunk.{part}" for part in (0, *range(2, 7)))
SHUFFLED = ("conv1", "stage2", "stage3", "stage4", "conv5")


def _torchvision(summary: str, blocks: Iterable[str], head: str) -> ZooEntry:
    parts = tuple(f"network.{block}" for block in blocks)
    return ZooEntry(CLASSIFICATION, f"{summary}, as torchvision has it", parts, f"network.{head}", IMAGENET, LARGE)


def _parts(name: str, count: int) -> list[str]:
    return [f"{name}.{number}" for number in range(count)]


OWN: Mapping[str, ZooEntry] = {
    "tiny": ZooEntry(
        SEGMENTATION, "student of four convolutions at a quarter of the resolution, 24 k parameters", TRUNK
    ),
    "small": ZooEntry(SEGMENTATION, "tiny at one and a half times its width, 53 k parameters", TRUNK),
    "half": ZooEntry(SEGMENTATION, "tiny at half its width, 6 k parameters", TRUNK),
    "teacher": ZooEntry(
        SEGMENTATION,
        "skips and a view of the whole frame, 420 k parameters",
        ("stem", "quarter", "eighth", "up_quarter", "up_half"),
    ),
    "tiny_classifier": ZooEntry(CLASSIFICATION, "tiny with one answer for the whole frame, 24 k parameters", TRUNK),
    "wide_classifier": ZooEntry(CLASSIFICATION, "tiny_classifier at four times its width, 370 k parameters", TRUNK),
    "tiny_residual": ZooEntry(
        CLASSIFICATION,
        "two residual blocks, as large as tiny_classifier, 26 k parameters",
        ("first", "deep.0", "deep.1"),
    ),
    "wide_residual": ZooEntry(
        CLASSIFICATION, "tiny_residual at four times its width, 410 k parameters", ("first", "deep.0", "deep.1")
    ),
    "deep_classifier": ZooEntry(
        CLASSIFICATION,
        "thirteen convolutions as VGG-16 has them, at an eighth of its width, 260 k parameters",
        tuple(f"stages.{stage}" for stage in range(5)),
    ),
    "tiny_staged": ZooEntry(
        CLASSIFICATION,
        "four stages of residual blocks, at half the width and resolution of staged, 81 k parameters",
        FOUR_STAGES,
    ),
    "staged": ZooEntry(
        CLASSIFICATION, "four stages of two residual blocks for pictures of 32 x 32, 320 k parameters", FOUR_STAGES
    ),
    "tiny_mobile": ZooEntry(
        CLASSIFICATION, "five inverted residuals down to a quarter of the resolution, 23 k parameters", MOBILE
    ),
    "tiny_mobile_segmenter": ZooEntry(SEGMENTATION, "tiny_mobile with a class for each pixel, 23 k parameters", MOBILE),
    "tiny_mobile_detector": ZooEntry(
        DETECTION, "tiny_mobile with a head that finds middles and sides, 24 k parameters", MOBILE, "head.answer"
    ),
    "tiny_detector": ZooEntry(
        DETECTION, "tiny with a head that finds middles and sides, 38 k parameters", (*TRUNK, "neck")
    ),
    "wide_detector": ZooEntry(DETECTION, "tiny_detector at four times its width, 370 k parameters", (*TRUNK, "neck")),
}
PUBLISHED: Mapping[str, ZooEntry] = {
    "deeplabv3_mobilenet": ZooEntry(
        SEGMENTATION,
        "DeepLabV3 on MobileNetV3-Large as torchvision has it, 11 M parameters",
        (*(f"network.{part}" for part in _parts("backbone", 17)), *_parts("network.classifier", 3)),
        "network.classifier.4",
    ),
    "deeplabv3_mobilenet_v2": ZooEntry(
        SEGMENTATION,
        "DeepLabV3 on MobileNetV2 without pyramid, the student of AMS, 2.1 M parameters",
        ("stem", *_parts("stages", 7), "place", "frame", "join"),
        input=Input((513, 513)),
        course=LARGE,
    ),
    "resnet56": ZooEntry(
        CLASSIFICATION, "ResNet-56 for small pictures, 0.85 M parameters", STAGED, input=SMALL_PICTURES, course=LARGE
    ),
    "wrn_28_10": ZooEntry(
        CLASSIFICATION,
        "wide residual network for small pictures, 36 M parameters",
        (*STAGED, "last"),
        input=SMALL_PICTURES,
        course=LARGE,
    ),
    "resnext29": ZooEntry(
        CLASSIFICATION, "ResNeXt-29, 8 x 64d, for small pictures, 34 M parameters", STAGED, input=SMALL_PICTURES,
        course=LARGE,
    ),
    "senet18": ZooEntry(
        CLASSIFICATION, "ResNet-18 with squeeze and excitation, 12 M parameters", (*STAGED, "stages.3"),
        input=Input((224, 224)), course=LARGE,
    ),
    "resnet18_cbam": ZooEntry(
        CLASSIFICATION, "ResNet-18 with attention to channels and places, 12 M parameters", (*STAGED, "stages.3"),
        input=Input((224, 224)), course=LARGE,
    ),
    "yolov3": ZooEntry(
        DETECTION, "YOLOv3 with outputs as the lab reads them, 62 M parameters",
        ("stem", *_parts("stages", 5), "necks.0", "heads.0", "downs.0", "necks.1", "heads.1", "downs.1", "necks.2",
         "heads.2.0"),
        "heads.2.1", Input((416, 416)), LARGE,
    ),
    "yolov3_tiny": ZooEntry(
        DETECTION, "YOLOv3-tiny with outputs as the lab reads them, 9 M parameters",
        (*_parts("local", 5), "deep", "neck", "down", "coarse", "fine.0"), "fine.1", Input((416, 416)), LARGE,
    ),
    "resnet18": _torchvision("ResNet-18, 12 M parameters", ("conv1", "bn1", *(f"layer{k}" for k in range(1, 5))), "fc"),
    "resnet50": _torchvision("ResNet-50, 26 M parameters", ("conv1", "bn1", *(f"layer{k}" for k in range(1, 5))), "fc"),
    "vgg16": _torchvision("VGG-16, 138 M parameters", ("features", "classifier.0", "classifier.3"), "classifier.6"),
    "mobilenet_v2": _torchvision("MobileNetV2, 3.5 M parameters", _parts("features", 19), "classifier.1"),
    "mobilenet_v3_small": _torchvision(
        "MobileNetV3-Small, 2.5 M parameters", (*_parts("features", 13), "classifier.0"), "classifier.3"
    ),
    "mobilenet_v3_large": _torchvision(
        "MobileNetV3-Large, 5.5 M parameters", (*_parts("features", 17), "classifier.0"), "classifier.3"
    ),
    "shufflenet_v2_x1_0": _torchvision("ShuffleNetV2, 2.3 M parameters", SHUFFLED, "fc"),
    "squeezenet1_1": _torchvision("SqueezeNet 1.1, 1.2 M parameters", ("features",), "classifier.1"),
    "vit_small": ZooEntry(
        CLASSIFICATION, "ViT-S/16, 22 M parameters",
        ("network.conv_proj", *(f"network.encoder.layers.encoder_layer_{k}" for k in range(12)), "network.encoder.ln"),
        "network.heads.head", Input((224, 224), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), fixed=True), LARGE,
    ),
}  # fmt: skip
ZOO: Mapping[str, ZooEntry] = {**OWN, **PUBLISHED}


def check(name: str) -> None:
    """Refuse a name that the zoo does not have."""
    if name not in ZOO:
        raise unknown_name("network", name, ZOO)


def task_of(name: str) -> Task:
    """Return the task of a network."""
    check(name)
    return ZOO[name].task
